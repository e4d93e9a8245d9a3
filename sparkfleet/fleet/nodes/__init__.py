"""The nodes before a plan is made: their facts, assumed ones, and other fleets on them."""
