"""Writes a GGUF model with the layers of a small one repeated: a large file with few bytes of its own.

usage: deepen.py MODEL.gguf LAYERS OUT.gguf
"""
import math
import re
import struct
import sys
from pathlib import Path

import to_checkpoint

# Bytes of a value of each metadata type but strings (8) and arrays (9).
SCALAR_BYTES = {kind: struct.calcsize(form) for kind, form in to_checkpoint.SCALARS.items()}
ALIGNMENT = 32


def deepen(model, layers, out):
    raw, at = Path(model).read_bytes(), 24

    def take(form):
        nonlocal at
        (value,) = struct.unpack_from(form, raw, at)
        at += struct.calcsize(form)
        return value

    def skip(kind):
        nonlocal at
        if kind == 8:
            size = take("<Q")
            at += size
        elif kind == 9:
            inner, count = take("<I"), take("<Q")
            for _ in range(count):
                skip(inner)
        else:
            at += SCALAR_BYTES[kind]

    version, tensors, keys = struct.unpack_from("<IQQ", raw, 4)
    metadata, own_layers = [], 0
    for _ in range(keys):
        begin = at
        name = text(raw, at)
        at += 8 + len(name)
        kind = take("<I")
        value = at
        skip(kind)
        metadata.append((raw[begin:value], kind, raw[value:at]))
        if name.endswith(b".block_count"):
            (own_layers,) = struct.unpack("<I", raw[value:at])
            metadata[-1] = (raw[begin:value], kind, struct.pack("<I", layers))
    for i, (head, kind, value) in enumerate(metadata):  # lists with an entry a layer
        if kind == 9 and struct.unpack_from("<IQ", value)[1] == own_layers and value[0] in SCALAR_BYTES:
            size = layers * SCALAR_BYTES[value[0]]
            metadata[i] = (head, kind, value[:4] + struct.pack("<Q", layers) + (value[12:] * layers)[:size])
    table = []
    for _ in range(tensors):
        name = text(raw, at)
        at += 8 + len(name)
        begin = at
        dimensions = take("<I")
        at += 8 * dimensions + 4  # the type
        table.append((name, raw[begin:at], take("<Q")))
    start = math.ceil(at / ALIGNMENT) * ALIGNMENT
    begins = sorted(offset for _, _, offset in table)
    end_of = dict(zip(begins, begins[1:] + [len(raw) - start]))

    entries = []
    for name, shape, offset in table:
        data = raw[start + offset:start + end_of[offset]]
        of_layer = re.match(rb"blk\.(\d+)(\..*)", name, re.DOTALL)
        if not of_layer:
            entries.append((name, shape, data))
            continue
        for layer in range(int(of_layer.group(1)), layers, own_layers):
            entries.append((b"blk.%d" % layer + of_layer.group(2), shape, data))
    # In the order of the layers, as converters write them.
    entries.sort(key=lambda e: int(e[0].split(b".")[1]) if e[0].startswith(b"blk.") else -1)
    with open(out, "wb") as file:
        file.write(raw[:4] + struct.pack("<IQQ", version, len(entries), keys))
        for head, _, value in metadata:
            file.write(head + value)
        offset = 0
        for name, shape, data in entries:
            file.write(struct.pack("<Q", len(name)) + name + shape + struct.pack("<Q", offset))
            offset += math.ceil(len(data) / ALIGNMENT) * ALIGNMENT
        file.write(bytes(-file.tell() % ALIGNMENT))
        for _, _, data in entries:
            file.write(data + bytes(-len(data) % ALIGNMENT))


def text(raw, at):
    (size,) = struct.unpack_from("<Q", raw, at)
    return raw[at + 8:at + 8 + size]


if __name__ == "__main__":
    deepen(sys.argv[1], int(sys.argv[2]), sys.argv[3])
