"""spacy: a blank English pipeline, rules, matching, a little training, and a saved model."""

from __future__ import annotations


def main(folder: str) -> object:
    import os

    import spacy
    from spacy.matcher import Matcher, PhraseMatcher
    from spacy.tokens import Doc, DocBin
    from spacy.training import Example

    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")
    ruler = nlp.add_pipe("entity_ruler")
    ruler.add_patterns([{"label": "CITY", "pattern": "Bern"}, {"label": "FRUIT", "pattern": [{"LOWER": "apple"}]}])
    doc = nlp("Ann doesn't live in Bern. She eats an Apple for $3.50!")
    entities = [[e.text, e.label_] for e in doc.ents]
    assert entities == [["Bern", "CITY"], ["Apple", "FRUIT"]]

    matcher = Matcher(nlp.vocab)
    matcher.add("PRICE", [[{"ORTH": "$"}, {"LIKE_NUM": True}]])
    phrases = PhraseMatcher(nlp.vocab, attr="LOWER")
    phrases.add("LIVE", [nlp.make_doc("live in")])

    classify = spacy.blank("en")
    categories = classify.add_pipe("textcat")
    for label in ("GOOD", "BAD"):
        categories.add_label(label)
    samples = [("great nice", 1.0), ("awful bad", 0.0), ("nice", 1.0), ("bad", 0.0)]
    examples = [
        Example.from_dict(classify.make_doc(text), {"cats": {"GOOD": good, "BAD": 1 - good}}) for text, good in samples
    ]
    spacy.util.fix_random_seed(1)
    optimizer = classify.initialize(lambda: examples)
    for _ in range(10):
        classify.update(examples, sgd=optimizer)

    path = os.path.join(folder, "model")
    classify.to_disk(path)
    loaded = spacy.load(path)
    good = loaded("great nice").cats["GOOD"]
    assert good > 0.5
    Doc.set_extension("size", getter=len, force=True)
    stored = DocBin(store_user_data=True, docs=[doc])
    bin_path = os.path.join(folder, "docs.spacy")
    stored.to_disk(bin_path)
    again = list(DocBin().from_disk(bin_path).get_docs(nlp.vocab))[0]
    return {
        "tokens": [token.text for token in doc],
        "entities": entities,
        "sentences": len(list(doc.sents)),
        "matches": [doc[start:end].text for _, start, end in [*matcher(doc), *phrases(doc)]],
        "good": good > 0.5,
        "size": doc._.size,
        "again": again.text == doc.text,
        "pipes": [d.text for d in nlp.pipe(["a b", "c"], batch_size=1)],
    }
