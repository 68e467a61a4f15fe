"""Say over gRPC whether this process serves (grpc.health.v1), and what it serves (grpc.reflection.v1alpha)."""

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import SERVICE_NAME, aio
from grpc_reflection.v1alpha import reflection

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Health:
    """The health of one gRPC service and, under the empty name, of the whole process. Both start as not serving."""

    def __init__(self, service: str) -> None:
        self._names = ("", service)
        self._service = service
        self._servicer = aio.HealthServicer()

    async def add_to(self, server: grpc.aio.Server) -> None:
        """Answer health checks and reflection on `server`, which has not been started yet."""
        await self._set(NOT_SERVING)  # the library starts with a process that serves
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)
        reflection.enable_server_reflection([self._service, SERVICE_NAME, reflection.SERVICE_NAME], server)

    async def say_serving(self) -> None:
        """Answer SERVING from now on."""
        await self._set(SERVING)

    async def say_stopping(self) -> None:
        """Answer NOT_SERVING for good."""
        await self._servicer.enter_graceful_shutdown()

    async def _set(self, status: int) -> None:
        for name in self._names:
            await self._servicer.set(name, status)
