"""onnxruntime: a tiny model written as raw protobuf bytes, loaded and run."""

from __future__ import annotations


def main(folder: str) -> object:
    import os
    import struct

    import numpy as np
    import onnxruntime as ort

    def varint(value: int) -> bytes:
        out = b""
        while value > 127:
            out += bytes([value & 127 | 128])
            value >>= 7
        return out + bytes([value])

    def number(field: int, value: int) -> bytes:
        return varint(field << 3) + varint(value)

    def block(field: int, data: bytes | str) -> bytes:
        data = data.encode() if isinstance(data, str) else data
        return varint(field << 3 | 2) + varint(len(data)) + data

    def value_info(name: str, rows: int, columns: int) -> bytes:
        shape = block(1, number(1, rows)) + block(1, number(1, columns))
        return block(1, name) + block(2, block(1, number(1, 1) + block(2, shape)))

    def node(kind: str, inputs: list, output: str) -> bytes:
        return b"".join(block(1, name) for name in inputs) + block(2, output) + block(3, "n" + output) + block(4, kind)

    weights = number(1, 2) + number(1, 2) + number(2, 1) + block(8, "w") + block(9, struct.pack("<4f", 1, -2, 3, 4))
    graph = block(1, node("MatMul", ["x", "w"], "m")) + block(1, node("Relu", ["m"], "y")) + block(2, "tiny")
    graph += block(5, weights) + block(11, value_info("x", 1, 2)) + block(12, value_info("y", 1, 2))
    model = number(1, 8) + block(7, graph) + block(8, block(1, "") + number(2, 13))

    path = os.path.join(folder, "tiny.onnx")
    with open(path, "wb") as file:
        file.write(model)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = os.path.join(folder, "optimized.onnx")
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    result = session.run(["y"], {"x": np.array([[1.0, 2.0]], dtype=np.float32)})[0]
    memory = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    again = memory.run(None, {"x": np.array([[-1.0, 0.5]], dtype=np.float32)})[0]
    assert result.tolist() == [[7.0, 6.0]]
    try:
        session.run(None, {"x": np.zeros((1, 3), dtype=np.float32)})
        error = ""
    except Exception as problem:
        error = type(problem).__name__
    return {
        "result": result.tolist(),
        "again": again.tolist(),
        "inputs": [[i.name, i.shape, i.type] for i in session.get_inputs()],
        "providers": session.get_providers(),
        "optimized": os.path.getsize(options.optimized_model_filepath) > 50,
        "error": error,
    }
