#!/usr/bin/env python3
"""Times flash-linear-attention and FlashInfer, where they are installed, on what bench_cuda times.

    python3 bench/cuda/peers.py build/cuda/cuda.json     adds their rows to the file and prints `figure NAME VALUE`

Neither is a part of frugal, and neither is installed by anybody here. Times are medians by events; results are compared with sums in
double of some heads before they are timed.
"""
import json
import math
import statistics
import sys

HEADS, KEY_HEADS, DIM = 32, 16, 128  # of the gated delta rule: Qwen3.5
QUERY_HEADS, KV_HEADS, HEAD_DIM = 24, 2, 256  # of attention: Qwen3.8-Flash-Next


def median_microseconds(torch, start):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def measured(calls):
        begin.record()
        for _ in range(calls):
            start()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1000 / calls
    measured(3)
    calls = max(1, min(400, int(1000 / max(measured(3), 0.5))))
    return statistics.median(measured(calls) for _ in range(15))


def relative(got, want):
    return math.sqrt(float((got.double() - want).square().mean() / want.square().mean()))


def delta_rule(torch, q, k, v, g, beta, state, heads):
    """Outputs of these value heads, token by token in double; q and k [tokens, value heads, dim]."""
    s = state[heads].double()
    out = []
    for t in range(q.shape[0]):
        key, query = k[t, heads].double(), q[t, heads].double()
        s = s * g[t, heads].double().exp()[:, None, None]
        delta = (v[t, heads].double() - torch.einsum("hkv,hk->hv", s, key)) * beta[t, heads].double()[:, None]
        s = s + torch.einsum("hk,hv->hkv", key, delta)
        out.append(torch.einsum("hkv,hk->hv", s, query) / math.sqrt(DIM))
    return torch.stack(out)


def linear_attention(torch, add):
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule
    for name, rule, tokens, dtype, tolerance in (("fla_recurrent", fused_recurrent_gated_delta_rule, 1, torch.float32, 1e-3),
                                                 ("fla_recurrent", fused_recurrent_gated_delta_rule, 512, torch.float32, 1e-3),
                                                 ("fla_chunked", chunk_gated_delta_rule, 512, torch.bfloat16, 3e-2),
                                                 ("fla_chunked", chunk_gated_delta_rule, 4096, torch.bfloat16, 3e-2)):
        torch.manual_seed(1)
        q, k = (torch.nn.functional.normalize(torch.randn(tokens, KEY_HEADS, DIM, device="cuda"), dim=-1)
                .repeat_interleave(HEADS // KEY_HEADS, 1).to(dtype) for _ in range(2))
        v = torch.randn(tokens, HEADS, DIM, device="cuda").to(dtype)
        g = -0.1 * torch.randn(tokens, HEADS, device="cuda").square()
        beta = torch.rand(tokens, HEADS, device="cuda").to(dtype)
        state = 0.1 * torch.randn(HEADS, DIM, DIM, device="cuda")

        def start():
            return rule(q[None], k[None], v[None], g=g[None], beta=beta[None], scale=DIM ** -0.5, initial_state=state[None],
                        output_final_state=True)[0]
        heads = [0, HEADS - 1]
        right = relative(start()[0][:, heads], delta_rule(torch, q, k, v, g, beta, state, heads)) < tolerance
        add(f"gated_delta_rule/{'f32' if dtype is torch.float32 else 'bf16'}/{name}/{HEADS}x128x128x{tokens}", right, start)


def attention(torch, add):
    import flashinfer
    for tokens in (32768, 131072, 262144, 1048576):
        if torch.cuda.mem_get_info()[0] < 5 * tokens * KV_HEADS * HEAD_DIM * 2:
            continue
        torch.manual_seed(1)
        q = torch.randn(QUERY_HEADS, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
        k, v = (torch.randn(tokens, KV_HEADS, HEAD_DIM, device="cuda", dtype=torch.bfloat16) for _ in range(2))

        def start():
            return flashinfer.single_decode_with_kv_cache(q, k, v, kv_layout="NHD", sm_scale=1 / 16)
        weights = torch.softmax(k[:, 0].double() @ q[0].double() / 16, 0)
        right = relative(start()[0], weights @ v[:, 0].double()) < 2e-2
        add(f"attention/bf16/flashinfer/{tokens}", right, start)


def main():
    path = sys.argv[1]
    with open(path, encoding="utf-8") as file:
        content = json.load(file)
    try:
        import torch
    except ImportError:
        print("no PyTorch: neither flash-linear-attention nor FlashInfer is timed")
        return 0
    if not torch.cuda.is_available():
        print("this PyTorch has no CUDA: neither flash-linear-attention nor FlashInfer is timed")
        return 0

    def add(name, right, start):
        if not right:
            print(f"WRONG {name}: left out")
            return
        time = median_microseconds(torch, start)
        print(f"figure {name.replace('/', '.')}.microseconds {time:.2f}")
        content["benchmarks"].append({"name": name, "run_type": "iteration", "family_index": len(content["benchmarks"]),
                                      "real_time": time, "time_unit": "us"})
    for name, group in (("flash-linear-attention", linear_attention), ("FlashInfer", attention)):
        try:
            group(torch, add)
        except ImportError as missing:
            print(f"no {name}: left out ({missing})")
        except Exception as problem:  # a peer that fails is no failure of ours
            print(f"{name} failed, left out: {problem}")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
