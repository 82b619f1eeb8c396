"""nltk: tokenisers, stemmers, n-grams, a grammar and a classifier that need no data."""

from __future__ import annotations


def main(folder: str) -> object:
    import os

    data = os.path.join(folder, "nltk_data")
    os.makedirs(data)
    os.environ["NLTK_DATA"] = data

    import nltk
    from nltk.corpus.reader import PlaintextCorpusReader
    from nltk.metrics import edit_distance
    from nltk.stem import PorterStemmer, SnowballStemmer
    from nltk.tokenize import RegexpTokenizer, TreebankWordTokenizer, TweetTokenizer, wordpunct_tokenize
    from nltk.translate.bleu_score import sentence_bleu
    from nltk.util import ngrams

    text = "The quick foxes don't jump over lazy dogs. They're running!"
    words = TreebankWordTokenizer().tokenize(text)
    assert "n't" in words
    frequency = nltk.FreqDist(word.lower() for word in RegexpTokenizer(r"\w+").tokenize(text * 2))

    with open(os.path.join(data, "a.txt"), "w", encoding="utf-8") as file:
        file.write(text)
    corpus = PlaintextCorpusReader(data, r".*\.txt", word_tokenizer=RegexpTokenizer(r"\w+"))

    grammar = nltk.CFG.fromstring("S -> NP VP\nNP -> 'dogs' | 'cats'\nVP -> V NP\nV -> 'chase'")
    trees = [str(tree) for tree in nltk.ChartParser(grammar).parse("dogs chase cats".split())]
    people = [("anna", "f"), ("maria", "f"), ("bob", "m"), ("tom", "m")]
    training = [({"last": name[-1]}, kind) for name, kind in people]
    classifier = nltk.NaiveBayesClassifier.train(training)
    tagger = nltk.RegexpTagger([(r".*ing$", "VBG"), (r".*s$", "NNS"), (r".*", "NN")])
    return {
        "words": words,
        "punct": wordpunct_tokenize("a,b")[:3],
        "tweet": TweetTokenizer().tokenize("so cool :) #yes @you"),
        "common": frequency.most_common(2),
        "stems": [PorterStemmer().stem("running"), SnowballStemmer("german").stem("katzen")],
        "bigrams": [list(pair) for pair in ngrams(["a", "b", "c"], 2)],
        "corpus": len(corpus.words("a.txt")),
        "trees": trees,
        "class": classifier.classify({"last": "a"}),
        "tags": tagger.tag(["running", "dogs", "cat"]),
        "distance": edit_distance("kitten", "sitting"),
        "bleu": round(sentence_bleu([["a", "b", "c", "d"]], ["a", "b", "c", "d"]), 4),
    }
