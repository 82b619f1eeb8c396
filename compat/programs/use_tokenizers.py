"""tokenizers: train a tiny BPE and WordPiece, encode, decode, and save."""

from __future__ import annotations


def main(folder: str) -> object:
    import os

    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    lines = ["the quick brown fox", "the lazy dog", "quick quick fox jumps over the dog"] * 5
    path = os.path.join(folder, "corpus.txt")
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(lines))

    bpe = Tokenizer(models.BPE(unk_token="[UNK]"))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.train([path], trainers.BpeTrainer(vocab_size=300, special_tokens=["[UNK]", "[PAD]"], show_progress=False))
    saved = os.path.join(folder, "bpe.json")
    bpe.save(saved)
    loaded = Tokenizer.from_file(saved)
    encoding = loaded.encode("the quick dog")
    assert loaded.decode(encoding.ids) == "the quick dog" and encoding.ids == bpe.encode("the quick dog").ids

    piece = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    piece.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents()])
    piece.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["[UNK]", "[CLS]", "[SEP]", "[PAD]"]
    trainer = trainers.WordPieceTrainer(vocab_size=80, special_tokens=special, show_progress=False)
    piece.train_from_iterator(lines, trainer)
    piece.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        special_tokens=[("[CLS]", piece.token_to_id("[CLS]")), ("[SEP]", piece.token_to_id("[SEP]"))],
    )
    piece.enable_padding(pad_id=3, pad_token="[PAD]")
    batch = piece.encode_batch(["The Fox", "qu\u00edck lazy dog jumps"])
    return {
        "tokens": encoding.tokens,
        "offsets": [list(pair) for pair in encoding.offsets],
        "size": bpe.get_vocab_size() > 50,
        "lengths": [len(item.ids) for item in batch],
        "first": batch[0].tokens[:2],
        "mask": batch[0].attention_mask,
        "normal": piece.normalizer.normalize_str("H\u00c9LLO"),
    }
