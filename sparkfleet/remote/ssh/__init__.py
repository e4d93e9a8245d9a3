"""SSH channels over paramiko: host keys, login, commands, forwards."""
