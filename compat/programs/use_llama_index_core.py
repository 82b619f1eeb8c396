"""llama-index-core: documents, node parsing, mock models, an in-memory index and storage."""

from __future__ import annotations


def main(folder: str) -> object:
    import os

    from llama_index.core import Document, PromptTemplate, Settings, SimpleDirectoryReader, StorageContext
    from llama_index.core import SummaryIndex, VectorStoreIndex, load_index_from_storage
    from llama_index.core.embeddings import MockEmbedding
    from llama_index.core.llms import MockLLM
    from llama_index.core.node_parser import SentenceSplitter
    from llama_index.core.tools import FunctionTool

    Settings.llm = MockLLM(max_tokens=5)
    Settings.embed_model = MockEmbedding(embed_dim=4)
    Settings.tokenizer = str.split

    source = os.path.join(folder, "source")
    os.makedirs(source)
    with open(os.path.join(source, "a.txt"), "w", encoding="utf-8") as file:
        file.write("Apples are red. Pears are green. " * 30)
    documents = SimpleDirectoryReader(source).load_data()
    documents.append(Document(text="Plums are blue.", metadata={"kind": "plum"}))
    splitter = SentenceSplitter(
        chunk_size=80,
        chunk_overlap=0,
        include_metadata=False,
        tokenizer=str.split,
        chunking_tokenizer_fn=lambda text: [part + ". " for part in text.split(". ") if part],
    )
    nodes = splitter.get_nodes_from_documents(documents)
    index = VectorStoreIndex(nodes)
    hits = index.as_retriever(similarity_top_k=2).retrieve("red")
    reply = index.as_query_engine().query("What is red?")
    path = os.path.join(folder, "store")
    index.storage_context.persist(path)
    again = load_index_from_storage(StorageContext.from_defaults(persist_dir=path))
    assert len(again.docstore.docs) == len(nodes)
    summary = SummaryIndex.from_documents([documents[-1]])
    tool = FunctionTool.from_defaults(lambda a, b: a + b, name="add", description="adds")
    return {
        "documents": len(documents),
        "nodes": len(nodes),
        "hits": [len(hits), [round(hit.score, 4) for hit in hits]],
        "reply": bool(str(reply)),
        "summary": len(summary.as_retriever().retrieve("x")),
        "tool": tool(1, 2).raw_output,
        "prompt": PromptTemplate("Hi {name}").format(name="Ann"),
        "files": len(os.listdir(path)) > 2,
    }
