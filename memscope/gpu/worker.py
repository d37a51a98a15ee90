"""XLA's GPU compiler in a process of its own. Run as a script by `remote`; imports nothing of memscope.

It reads requests from its standard input and answers on its standard output, one after another. Each message is a
JSON header on one line, whose "parts" give the lengths of the bytes that follow.
"""

from __future__ import annotations

import functools
import json
import os
import queue
import sys
import threading
import traceback
from typing import IO, Any

Message = tuple[dict[str, Any], list[bytes]]


def send(stream: IO[bytes], header: dict[str, Any], parts: list[bytes]) -> None:
    """Writes one message."""
    stream.write(json.dumps({**header, "parts": [len(part) for part in parts]}).encode() + b"\n")
    for part in parts:
        stream.write(part)
    stream.flush()


def receive(stream: IO[bytes]) -> Message | None:
    """Reads one message; None where the other side is gone."""
    line = stream.readline()
    if not line.endswith(b"\n"):
        return None
    header = json.loads(line)
    parts = [stream.read(length) for length in header["parts"]]
    complete = all(len(part) == length for part, length in zip(parts, header["parts"], strict=True))
    return (header, parts) if complete else None


def compile_exported(header: dict[str, Any], exported: bytes) -> Message:
    """Compiles a serialized `jax.export.Exported` for the GPU of a target config."""
    import jax
    import jax.export

    sharding = jax.sharding.NamedSharding(_mesh(header["config"]), jax.sharding.PartitionSpec())
    function = jax.export.deserialize(bytearray(exported))
    donate = tuple(i for i, given in enumerate(header["donated"]) if given)
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding) for a in function.in_avals]
    # The results' places as well: without arguments nothing else says that it is for the GPU.
    jitted = jax.jit(function.call, donate_argnums=donate, keep_unused=True, out_shardings=sharding)
    compiled = jitted.trace(*shapes).lower().compile()
    stats = compiled.memory_analysis()
    module = compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()
    sizes = {
        "argument_bytes": stats.argument_size_in_bytes,
        "output_bytes": stats.output_size_in_bytes,
        "temp_bytes": stats.temp_size_in_bytes,
        "alias_bytes": stats.alias_size_in_bytes,
    }
    return sizes, [module, stats.serialized_buffer_assignment_proto]


@functools.lru_cache(maxsize=16)
def _mesh(config: str) -> Any:
    import numpy as np
    from jax.experimental import topologies
    from jax.sharding import Mesh

    # Names may be no part of XLA's cache of topologies: one for each config keeps them apart.
    found = topologies.get_topology_desc(
        platform="cuda", topology_name=f"t{abs(hash(config))}", target_config=config, topology="1x1x1"
    )
    return Mesh(np.array(found.devices), ("x",))


def _answer(header: dict[str, Any], parts: list[bytes]) -> Message:
    try:
        return compile_exported(header, parts[0])
    except BaseException as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}, []


def main() -> None:
    """Answers until the other side is gone, also in the middle of a compile."""
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints is no answer
    waiting: queue.Queue[Message] = queue.Queue()

    def read() -> None:
        while (message := receive(requests)) is not None:
            waiting.put(message)
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    import jax

    # Exported modules carry their dtypes; without this JAX would cut 64-bit arguments to 32.
    jax.config.update("jax_enable_x64", True)
    while True:
        send(answers, *_answer(*waiting.get()))


if __name__ == "__main__":
    main()
