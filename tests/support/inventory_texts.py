"""Inventories as text."""

KEY = "SHA256:" + "A" * 43

INVENTORY = f"""fleet: home
head: spark2
nodes:
  spark1: {{address: 10.0.0.1, user: u, host_key: "{KEY}", engines: {{vllm: {{python: /opt/vllm/bin/python}}}}}}
  spark2: {{address: 10.0.0.2, user: u, host_key: "{KEY}"}}
  spark3: {{address: 10.0.0.3, user: u, host_key: "{KEY}"}}
links:
  - nodes: [spark1]
    switch: top-shelf
    rails:
      - [{{netdev: a0, rdma: r0, address: 192.168.100.1/24}}]
  - nodes: [spark3]
    switch: top-shelf
    rails:
      - [{{netdev: a0, rdma: r0, address: 192.168.100.3/24}}]
gateway:
  host: 0.0.0.0
"""
"""Two nodes on a switch, one beside them."""
