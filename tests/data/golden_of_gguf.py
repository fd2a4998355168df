"""Golden data of a Qwen4-Exp GGUF file: what transformers computes in float32 from the file's own weights, dequantised by gguf.

usage: golden_of_gguf.py CONFIG_DIR MODEL.gguf PROMPTS.json HELDOUT_IDS.txt OUT_DIR

CONFIG_DIR holds config.json. PROMPTS.json: {"prompts": {name: {"ids": [...]}}}, as golden.json has it. OUT_DIR gets for each prompt
NAME.safetensors (ids, positions, logits at these, argmax of every position, layer_out_last) and golden.json (64 greedy tokens with
the margin between the two best, perplexity of windows of 512 tokens).
"""
import json
import math
import shutil
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

WINDOW, GREEDY = 512, 64


def checkpoint(config, path):
    """The file's tensors under the names and in the order of the Hugging Face checkpoint."""
    tensors, reader = {}, gguf.GGUFReader(path)
    for t in reader.tensors:
        flat = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)
        tensors[t.name] = torch.from_numpy(flat.reshape([int(n) for n in reversed(t.shape)]).copy())
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    # GGUF: value head v of key head k is at v * keys + k; checkpoint: at k * (values / keys) + v.
    heads = torch.arange(values).reshape(values // keys, keys).T.ravel()
    rows = (heads[:, None] * config["linear_value_head_dim"] + torch.arange(config["linear_value_head_dim"])).ravel()
    qk = 2 * keys * config["linear_key_head_dim"]
    mixed = torch.cat([torch.arange(qk), qk + rows])
    out = {"model.embed_tokens.weight": tensors.pop("token_embd.weight")}

    def move(source, name, change=lambda w: w):
        out[name] = change(tensors.pop(source)).contiguous()

    def less_one(w):
        return w - 1

    for i in range(config["num_hidden_layers"]):
        b, p = f"blk.{i}.", f"model.layers.{i}."
        if b + "attn_qkv.weight" in tensors:
            move(b + "attn_qkv.weight", p + "linear_attn.in_proj_qkv.weight", lambda w: w[mixed])
            move(b + "attn_gate.weight", p + "linear_attn.in_proj_z.weight", lambda w: w[rows])
            move(b + "ssm_beta.weight", p + "linear_attn.in_proj_b.weight", lambda w: w[heads])
            move(b + "ssm_alpha.weight", p + "linear_attn.in_proj_a.weight", lambda w: w[heads])
            move(b + "ssm_a", p + "linear_attn.A_log", lambda w: (-w).log()[heads])
            move(b + "ssm_dt.bias", p + "linear_attn.dt_bias", lambda w: w[heads])
            move(b + "ssm_conv1d.weight", p + "linear_attn.conv1d.weight", lambda w: w[mixed][:, None])
            move(b + "ssm_norm.weight", p + "linear_attn.norm.weight")
            move(b + "ssm_out.weight", p + "linear_attn.out_proj.weight", lambda w: w[:, rows])
        else:
            for source, name in (("q", "q"), ("k", "k"), ("v", "v"), ("output", "o")):
                move(f"{b}attn_{source}.weight", f"{p}self_attn.{name}_proj.weight")
            for name in ("q_norm", "k_norm"):
                move(f"{b}attn_{name}.weight", f"{p}self_attn.{name}.weight", less_one)
            out[p + "self_attn.indexer.index_qk_proj.weight"] = torch.cat(
                [tensors.pop(b + "indexer.q_proj.weight"), tensors.pop(b + "indexer.k_proj.weight")])
            for name in ("q", "k"):
                move(f"{b}indexer.{name}_norm.weight", f"{p}self_attn.indexer.{name}_layernorm.weight", less_one)
        for short, name in (("attn", "attn"), ("ffn", "mlp")):
            around = f"{p}{name}_hyper_connection."
            move(f"{b}hc_{short}_norm.weight", around + "hc_norm.weight", less_one)
            move(f"{b}hc_{short}_down.weight", around + "input_mix_weight_down.weight")
            move(f"{b}hc_{short}_up.weight", around + "input_mix_weight_up.weight")
            move(f"{b}hc_{short}_inject.weight", around + "block_inject_weight.weight")
        move(b + "ffn_gate_inp.weight", p + "mlp.gate.weight")
        move(b + "ffn_gate_inp_shexp.weight", p + "mlp.shared_expert_gate.weight", lambda w: w.reshape(1, -1))
        for name in ("gate", "up", "down"):
            move(f"{b}ffn_{name}_shexp.weight", f"{p}mlp.shared_expert.{name}_proj.weight")
            for e, expert in enumerate(tensors.pop(f"{b}ffn_{name}_exps.weight")):
                out[f"{p}mlp.experts.{e}.{name}_proj.weight"] = expert.contiguous()
        if i + 1 in config["ple_layer_ids"]:
            for name in ("key", "value"):
                move(f"{b}ple_{name}.weight", f"{p}ple.{name}_proj.weight")
            for name in ("norm_key", "norm_query", "norm_conv"):
                move(f"{b}ple_{name}.weight", f"{p}ple.{name}.weight", less_one)
            move(b + "ple_conv1d.weight", p + "ple.conv1d.weight", lambda w: w[:, None])
            for source, name in (("layer_multipliers", "layer_multipliers"), ("head_vocab_sizes", "ngram_heads_vocab_sizes"),
                                 ("head_offsets", "ngram_heads_offsets")):
                values_of = reader.fields[f"qwen4exp.ple.{source}"].contents()
                out[f"{p}ple.ple_embedding.{name}"] = torch.tensor(values_of, dtype=torch.int64)
            table = tensors.pop("per_layer_token_embd.weight")
            for s, part in enumerate(table.chunk(config["split_ngram_parts"])):
                out[f"{p}ple.ple_embedding.ngram_embedding.shard_{s}.weight"] = part.contiguous()
    mixer = "model.hyper_connection_mixer."
    move("output_hc_norm.weight", mixer + "hc_norm.weight", less_one)
    move("output_hc_down.weight", mixer + "input_mix_weight_down.weight")
    move("output_hc_up.weight", mixer + "input_mix_weight_up.weight")
    if tensors:
        sys.exit(f"tensors without a place: {sorted(tensors)}")
    return out


@torch.no_grad()
def main():
    config_dir, path, prompts, heldout, out = map(Path, sys.argv[1:])
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(config_dir / "config.json", folder)
        save_file(checkpoint(json.loads((config_dir / "config.json").read_text()), path), f"{folder}/model.safetensors")
        model, info = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    problems = {k: sorted(v) for k, v in info.items() if v}
    if problems.pop("missing_keys", []) not in ([], ["lm_head.weight"]) or problems:
        sys.exit(f"not as the checkpoint: {info}")
    model.eval()
    golden = {"prompts": {}}
    for name, prompt in json.loads(prompts.read_text())["prompts"].items():
        ids, layers = prompt["ids"], []
        hooks = [layer.register_forward_hook(lambda m, a, o: layers.append(o[0] if isinstance(o, tuple) else o))
                 for layer in model.model.layers]
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
        for hook in hooks:
            hook.remove()
        n = len(ids)
        positions = list(range(n)) if n <= 64 else sorted({*range(15, n, 16), *range(n - 8, n)})
        save_file({
            "ids": torch.tensor(ids, dtype=torch.int32),
            "positions": torch.tensor(positions, dtype=torch.int32),
            "logits": logits[positions].contiguous(),
            "argmax": logits.argmax(-1).to(torch.int32),
            "layer_out_last": torch.stack([layer[0, -1] for layer in layers]).contiguous(),
        }, out / f"{name}.safetensors")
        past, step, greedy, margins = None, torch.tensor([ids]), [], []
        for _ in range(GREEDY):
            r = model(input_ids=step, past_key_values=past, use_cache=True)
            past, two = r.past_key_values, r.logits[0, -1].topk(2)
            greedy.append(int(two.indices[0]))
            margins.append(round(float(two.values[0] - two.values[1]), 5))
            step = two.indices[:1].view(1, 1)
        golden["prompts"][name] = {"ids": ids, "greedy": greedy, "greedy_margin": margins}
    stream = [int(i) for i in heldout.read_text().split()]
    total = count = 0
    for w in range(0, len(stream) - WINDOW + 1, WINDOW):
        x = torch.tensor([stream[w:w + WINDOW]])
        logits = model(input_ids=x, use_cache=False).logits[0]
        total += torch.nn.functional.cross_entropy(logits[:-1], x[0, 1:], reduction="sum").item()
        count += WINDOW - 1
    golden["perplexity"] = {"predictions": count, "mean_nll": total / count, "perplexity": math.exp(total / count)}
    (out / "golden.json").write_text(json.dumps(golden, indent=1) + "\n")
    print(golden["perplexity"], {k: min(v["greedy_margin"]) for k, v in golden["prompts"].items()})


if __name__ == "__main__":
    main()
