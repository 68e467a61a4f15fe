"""How a worker's calls reach their peers.

negotiated.py   the transport that a client uses: asks each server how it can be reached, and takes the best way
choice.py       the ways by name, and how a user chooses one
grpc.py         over gRPC, which carries everything
lanes.py        the fast lane to one server: its connections; lane.py one of them; ps_proto/frames.py what travels there
arena.py        the memory that a worker shares with the servers on its host
"""
