"""Rewrites a qwen35 GGUF file with BF16 weights as a Hugging Face directory, in two shards with an index.

Undoes what converters do: value heads back from tiled to grouped order, gammas without their 1, A_log from -exp(A_log).
"""
import json
import math
import shutil
import struct
from pathlib import Path

SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
F32, BF16 = 0, 30


def read_gguf(path):
    """Keys -> values, and name -> (shape outermost first, type, bytes)."""
    raw, at = Path(path).read_bytes(), 24

    def take(form):
        nonlocal at
        (value,) = struct.unpack_from(form, raw, at)
        at += struct.calcsize(form)
        return value

    def text():
        nonlocal at
        size = take("<Q")
        at += size
        return raw[at - size:at].decode("utf-8", "surrogateescape")

    def value(kind):
        if kind == 8:
            return text()
        if kind == 9:
            inner, count = take("<I"), take("<Q")
            return [value(inner) for _ in range(count)]
        return take(SCALARS[kind])

    tensors, keys = struct.unpack_from("<QQ", raw, 8)
    metadata = {}
    for _ in range(keys):
        name = text()
        metadata[name] = value(take("<I"))
    table = {}
    for _ in range(tensors):
        name = text()
        shape = [take("<Q") for _ in range(take("<I"))][::-1]
        table[name] = (shape, take("<I"), take("<Q"))
    start = (at + 31) // 32 * 32
    return metadata, {name: (shape, kind, raw[start + offset:start + offset + math.prod(shape) * (4 if kind == F32 else 2)])
                      for name, (shape, kind, offset) in table.items()}


def convert(gguf, config, tokenizer_files, out):
    metadata, tensors = read_gguf(gguf)
    out = Path(out)
    keys, values = metadata["qwen35.ssm.group_count"], metadata["qwen35.ssm.time_step_rank"]
    key_dim, hidden = metadata["qwen35.ssm.state_size"], metadata["qwen35.embedding_length"]
    value_dim, per = metadata["qwen35.ssm.inner_size"] // values, values // keys

    def floats(data, change):
        return struct.pack(f"<{len(data) // 4}f", *(change(x) for x in struct.unpack(f"<{len(data) // 4}f", data)))

    def grouped(data, size, start=0):
        """Heads of `size` bytes from `start` on: tiled place v * keys + k goes to grouped place k * per + v."""
        heads = [data[start + h * size:start + (h + 1) * size] for h in range(values)]
        return data[:start] + b"".join(heads[v * keys + k] for k in range(keys) for v in range(per))

    def columns(data, row, size):
        return b"".join(grouped(data[i:i + row], size) for i in range(0, len(data), row))

    same = {"attn_q": "q_proj", "attn_k": "k_proj", "attn_v": "v_proj", "attn_output": "o_proj"}
    result = {}
    for name, (shape, kind, data) in tensors.items():
        if name == "token_embd.weight":
            result["model.embed_tokens.weight"] = (shape, kind, data)
        elif name == "output_norm.weight":
            result["model.norm.weight"] = (shape, kind, floats(data, lambda x: x - 1))
        else:
            _, layer, part = name.split(".", 2)
            at, stem = f"model.layers.{layer}.", part.removesuffix(".weight")
            wide = 4 if kind == F32 else 2
            queries_and_keys = 2 * keys * key_dim
            if stem in same:
                target = f"self_attn.{same[stem]}.weight"
            elif stem in ("attn_q_norm", "attn_k_norm"):
                target, data = f"self_attn.{stem[5:]}.weight", floats(data, lambda x: x - 1)
            elif stem == "attn_norm":
                target, data = "input_layernorm.weight", floats(data, lambda x: x - 1)
            elif stem == "post_attention_norm":
                target, data = "post_attention_layernorm.weight", floats(data, lambda x: x - 1)
            elif stem.startswith("ffn_"):
                target = f"mlp.{stem[4:]}_proj.weight"
            elif stem == "attn_qkv":
                target, data = "linear_attn.in_proj_qkv.weight", grouped(data, value_dim * hidden * wide, queries_and_keys * hidden * wide)
            elif stem == "attn_gate":
                target, data = "linear_attn.in_proj_z.weight", grouped(data, value_dim * hidden * wide)
            elif stem in ("ssm_beta", "ssm_alpha"):
                target, data = f"linear_attn.in_proj_{'b' if stem == 'ssm_beta' else 'a'}.weight", grouped(data, hidden * wide)
            elif stem == "ssm_out":
                target, data = "linear_attn.out_proj.weight", columns(data, values * value_dim * wide, value_dim * wide)
            elif stem == "ssm_conv1d":
                kernel = shape[-1]
                target, data = "linear_attn.conv1d.weight", grouped(data, value_dim * kernel * wide, queries_and_keys * kernel * wide)
                shape = [shape[0], 1, kernel]
            elif stem == "ssm_norm":
                target = "linear_attn.norm.weight"
            elif stem == "ssm_a":
                target, data = "linear_attn.A_log", grouped(floats(data, lambda x: math.log(-x)), 4)
            elif part == "ssm_dt.bias":
                target, data = "linear_attn.dt_bias", grouped(data, 4)
            else:
                raise ValueError(name)
            result[at + target] = (shape, kind, data)
    names = sorted(result)
    where = {}
    for number, part in enumerate((names[::2], names[1::2]), 1):
        file, header, payload = f"model-0000{number}-of-00002.safetensors", {}, b""
        for name in part:
            shape, kind, data = result[name]
            header[name] = {"dtype": "F32" if kind == F32 else "BF16", "shape": shape,
                            "data_offsets": [len(payload), len(payload) + len(data)]}
            payload += data
            where[name] = file
        text = json.dumps(header).encode()
        (out / file).write_bytes(struct.pack("<Q", len(text)) + text + payload)
    (out / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    shutil.copy(config, out / "config.json")
    for file in tokenizer_files:
        shutil.copy(file, out)
