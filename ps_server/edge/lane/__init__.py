"""The fast lane's server side: the same requests as over gRPC, in the frames of ps_proto/frames.py.

listener.py     listens on a unix socket and a TCP port, and says so to whoever asks over gRPC (OpenLane)
greeting.py     takes the hello of a connection: the token and, over the unix socket, perhaps the worker's arena
connection.py   one connection that was let in: frames in, requests to the core, answers out
arena.py        a worker's shared memory, as a server sees it
"""
