"""Models of transformers, small ones, from their configurations: no weights are fetched. Nothing in a training step may
hang on what a kernel has computed, for kernels compute nothing here."""

import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    ViTConfig,
    ViTForImageClassification,
)

WORDS = 2000
# Attention in plain operations: the fused kinds ask their kernels for sizes.
PLAIN = {"attn_implementation": "eager"}


def mask(rows, seen):
    """Which words may look at which, ready for the attention: (row, 1, word, word), 0 or very little. Made on the host, for where
    it is left to transformers it looks at numbers on the device to find out whether it needs one, and kernels compute none
    here."""
    least = torch.finfo(torch.float32).min
    return torch.zeros(seen.shape).masked_fill(~seen, least).expand(rows, 1, *seen.shape[-2:]).contiguous()


def causal(rows, words):
    return mask(rows, torch.ones(words, words, dtype=torch.bool).tril())


def gpt2():
    """Texts of one length in a batch, another in each."""
    config = GPT2Config(use_cache=False, **PLAIN)

    def batch(choose):
        words = torch.randint(0, WORDS, (choose.randrange(2, 9), choose.randrange(32, 257)))
        return {"input_ids": words, "labels": words, "attention_mask": causal(*words.shape)}

    return GPT2LMHeadModel(config), batch


def bert():
    """Texts of random lengths, padded to the longest of the batch."""
    config = BertConfig(**PLAIN)

    def batch(choose):
        lengths = [choose.randrange(8, 257) for _ in range(choose.randrange(4, 17))]
        words = torch.zeros(len(lengths), max(lengths), dtype=torch.long)
        for row, length in enumerate(lengths):
            words[row, :length] = torch.randint(1, WORDS, (length,))
        seen = words.ne(0)[:, None, None, :].expand(-1, 1, max(lengths), -1)
        return {"input_ids": words, "labels": words, "attention_mask": mask(len(lengths), seen)}

    return BertForMaskedLM(config), batch


def vit():
    """Images of one size, as many as come."""
    config = ViTConfig(**PLAIN)

    def batch(choose):
        count = choose.randrange(4, 33)
        return {"pixel_values": torch.zeros(count, 3, 224, 224), "labels": torch.zeros(count, dtype=torch.long)}

    return ViTForImageClassification(config), batch


MODELS = {"GPT-2": gpt2, "BERT": bert, "ViT": vit}
