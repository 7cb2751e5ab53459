"""`cp-ray bench fleet`: many replicas in virtual time, one routing policy in front of them."""
