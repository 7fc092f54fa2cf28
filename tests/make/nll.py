#!/usr/bin/env python3
"""Mean negative log likelihood of a text, by transformers in f32: what the reference of `verify --against` must find.

    pip install torch transformers
    tests/make/nll.py CHECKPOINT TEXT WINDOWS [--length 512]

TEXT is tokenised as one text without special tokens; each window predicts all its tokens but the first.
"""
import argparse
from pathlib import Path

import torch
import transformers


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("windows", type=int)
    parser.add_argument("--length", type=int, default=512)
    args = parser.parse_args()

    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(args.checkpoint / "tokenizer.json"))
    ids = torch.tensor(tokenizer(args.text.read_text(), add_special_tokens=False)["input_ids"])
    model = transformers.AutoModelForCausalLM.from_pretrained(args.checkpoint, dtype=torch.float32).eval()
    losses = []
    for i in range(args.windows):
        window = ids[i * args.length:(i + 1) * args.length]
        logs = torch.log_softmax(model(window[None]).logits[0].double(), -1)
        losses.append(-logs[:-1].gather(1, window[1:, None])[:, 0])
    print(f"{torch.cat(losses).mean():.6f}")


if __name__ == "__main__":
    main()
