"""How a worker's calls reach their peers. grpc.py: over gRPC, which carries everything."""
