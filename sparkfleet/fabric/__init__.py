"""The cables: who is joined to whom, which addresses the rails should have, and how fast they really are."""
