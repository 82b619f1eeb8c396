"""transformers: a tiny random BERT, a tokenizer, generation, and save and load in the folder."""

from __future__ import annotations


def main(folder: str) -> object:
    import os

    os.environ["HF_HOME"] = os.path.join(folder, "hf")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(folder, "inductor")

    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertForSequenceClassification, BertModel, GPT2Config, GPT2LMHeadModel
    from transformers import AutoConfig, AutoModel, PreTrainedTokenizerFast
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    torch.manual_seed(0)
    sizes = {"vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = BertConfig(intermediate_size=32, max_position_embeddings=32, **sizes)
    model = BertModel(config).eval()
    ids = torch.tensor([[1, 5, 6, 2]])
    with torch.no_grad():
        hidden = model(input_ids=ids).last_hidden_state
    path = os.path.join(folder, "bert")
    model.save_pretrained(path)
    loaded = AutoModel.from_pretrained(path, local_files_only=True).eval()
    with torch.no_grad():
        assert torch.allclose(loaded(input_ids=ids).last_hidden_state, hidden, atol=1e-5)

    classifier = BertForSequenceClassification(config)
    output = classifier(input_ids=ids, labels=torch.tensor([1]))
    output.loss.backward()

    words = {"[PAD]": 0, "[UNK]": 1, "hello": 2, "world": 3}
    raw = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="[UNK]", pad_token="[PAD]")
    tokenizer.save_pretrained(path)
    again = PreTrainedTokenizerFast.from_pretrained(path, local_files_only=True)
    batch = again(["hello world", "hello"], padding=True, return_tensors="pt")

    sizes = {"vocab_size": 20, "n_positions": 32, "n_embd": 16, "n_layer": 1, "n_head": 2}
    gpt = GPT2LMHeadModel(GPT2Config(bos_token_id=0, eos_token_id=1, **sizes)).eval()
    text = gpt.generate(torch.tensor([[3, 4]]), max_new_tokens=4, do_sample=False, pad_token_id=0, eos_token_id=None)
    return {
        "shape": list(hidden.shape),
        "type": AutoConfig.from_pretrained(path, local_files_only=True).model_type,
        "logits": list(output.logits.shape),
        "ids": batch["input_ids"].tolist(),
        "mask": batch["attention_mask"].tolist(),
        "decoded": again.decode([2, 3]),
        "generated": list(text.shape),
        "files": sorted(os.listdir(path)),
    }
