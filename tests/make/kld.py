#!/usr/bin/env python3
"""What quantisation cost: mean KL divergence of the next token, bundle against checkpoint, by transformers in f32.

    pip install torch transformers safetensors numpy
    tests/make/kld.py CHECKPOINT BUNDLE TEXT [--windows 24] [--length 512] [--first 0]

TEXT is tokenised as one text without special tokens and cut into windows. The bundle's grouped records are decoded as
(code - zero) * scale and put back into the checkpoint's tensors by the recipes in packlight.json.
"""
import argparse
import json
from pathlib import Path

import numpy as np
import torch
import transformers

BITS = {"q3": (3, 40), "q4": (4, 32), "q8": (8, 32)}


def records(bundle: Path) -> dict:
    dtypes = {"uint32": np.uint32, "float16": np.float16}
    found = {}
    for shard in json.loads((bundle / "tensor-cache.json").read_text())["records"]:
        data = (bundle / shard["dataPath"]).read_bytes()
        for record in shard["records"]:
            bytes_ = data[record["byteOffset"]:record["byteOffset"] + record["nbytes"]]
            if record["dtype"] in dtypes:
                found[record["name"]] = np.frombuffer(bytes_, dtypes[record["dtype"]]).reshape(record["shape"])
            else:  # float32 records travel as bfloat16, like bfloat16 ones
                halves = np.frombuffer(bytes_, np.uint16).astype(np.uint32) << 16
                found[record["name"]] = halves.view(np.float32).reshape(record["shape"])
    return found


def decoded(found: dict, weight: dict, scheme: str) -> torch.Tensor:
    if weight["name"] in found:
        return torch.from_numpy(found[weight["name"]].astype(np.float32))
    bits, group = BITS[scheme[:2]]
    stem = weight["name"].removesuffix("weight")
    words, scales = found[stem + "q_weight"], found[stem + "q_scale"].astype(np.float32)
    if words.shape[0] != weight["shape"][0]:
        words, scales = words.T, scales.T
    shifts = bits * np.arange(32 // bits, dtype=np.uint32)
    codes = (words[..., None] >> shifts & ((1 << bits) - 1)).reshape(len(words), -1, group)
    values = (codes.astype(np.float32) - ((1 << bits - 1) - 1)) * scales[..., None]
    return torch.from_numpy(values.reshape(len(words), -1)[:, :weight["shape"][1]].copy())


def weights(node):
    """Every weight of the description, wherever it stands."""
    if isinstance(node, dict):
        if "recipe" in node:
            yield node
        for child in node.values():
            yield from weights(child)
    elif isinstance(node, list):
        for child in node:
            yield from weights(child)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--windows", type=int, default=24)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--first", type=int, default=0, help="index of the first window")
    args = parser.parse_args()

    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(args.checkpoint / "tokenizer.json"))
    ids = torch.tensor(tokenizer(args.text.read_text(), add_special_tokens=False)["input_ids"])
    windows = [ids[i * args.length:(i + 1) * args.length] for i in range(args.first, args.first + args.windows)]
    model = transformers.AutoModelForCausalLM.from_pretrained(args.checkpoint, dtype=torch.float32).eval()

    @torch.no_grad()
    def log_probs():
        return [torch.log_softmax(model(window[None]).logits[0], -1) for window in windows]

    expected = log_probs()
    manifest = json.loads((args.bundle / "packlight.json").read_text())
    overridden = {name: o["scheme"] for o in manifest["overrides"] for name in o["weights"]}
    found, tensors = records(args.bundle), model.state_dict()
    with torch.no_grad():
        for weight in weights(manifest["model"]):
            values = decoded(found, weight, overridden.get(weight["name"], manifest["scheme"]))
            (kind, sources), = weight["recipe"].items()
            row = 0
            for source in sources if isinstance(sources, list) else [sources]:
                rows = source["shape"][0]
                tensors[source["tensor"]].copy_(values[row:row + rows] - float(kind == "add_one"))
                row += rows
    quantised = log_probs()

    def perplexity(logs):
        return torch.cat([-log[:-1].gather(1, w[1:, None])[:, 0] for log, w in zip(logs, windows)]).mean().exp()

    pairs = list(zip(expected, quantised))
    kld = torch.cat([(p.exp() * (p - q)).sum(-1) for p, q in pairs])
    same = torch.cat([(p.argmax(-1) == q.argmax(-1)).float() for p, q in pairs])
    print(f"mean KLD {kld.mean():.4f}, 99.9 % {kld.quantile(0.999):.3f}, same top {100 * same.mean():.1f} %, "
          f"perplexity {perplexity(quantised):.3f} against {perplexity(expected):.3f}")


if __name__ == "__main__":
    main()
