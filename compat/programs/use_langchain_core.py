"""langchain-core: prompts, runnables, fake models, parsers, tools and a retriever."""

from __future__ import annotations


def main(folder: str) -> object:
    import asyncio
    import os

    from langchain_core.documents import Document
    from langchain_core.embeddings import DeterministicFakeEmbedding
    from langchain_core.language_models import FakeListChatModel, FakeListLLM
    from langchain_core.load import dumps, loads
    from langchain_core.messages import AIMessage, HumanMessage
    from langchain_core.output_parsers import CommaSeparatedListOutputParser, JsonOutputParser, StrOutputParser
    from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
    from langchain_core.runnables import RunnableLambda, RunnableParallel, RunnablePassthrough
    from langchain_core.tools import tool
    from langchain_core.vectorstores import InMemoryVectorStore

    prompt = PromptTemplate.from_template("List three {things}")
    model = FakeListLLM(responses=["red, green, blue"])
    chain = prompt | model | CommaSeparatedListOutputParser() | RunnableLambda(lambda items: [i.upper() for i in items])
    listed = chain.invoke({"things": "colours"})
    assert listed == ["RED", "GREEN", "BLUE"]

    chat = ChatPromptTemplate.from_messages([("system", "You are {role}"), ("human", "{question}")])
    fake = FakeListChatModel(responses=['{"answer": 42}'])
    answer = (chat | fake | JsonOutputParser()).invoke({"role": "kind", "question": "what?"})
    streamed = list((chat | fake | StrOutputParser()).stream({"role": "kind", "question": "what?"}))
    both = RunnableParallel(double=RunnableLambda(lambda x: x * 2), same=RunnablePassthrough())
    batch = both.batch([1, 2], config={"max_concurrency": 2})

    @tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
    store.add_documents([Document(page_content=text, id=text) for text in ("apple", "pear", "plum")])
    found = store.similarity_search("pear", k=1)[0].page_content
    store.dump(os.path.join(folder, "store.json"))
    path = os.path.join(folder, "message.json")
    with open(path, "w", encoding="utf-8") as file:
        file.write(dumps(AIMessage("hi")))
    with open(path, encoding="utf-8") as file:
        message = loads(file.read(), allowed_objects=[AIMessage])
    retried = RunnableLambda(lambda x: 1 / x).with_fallbacks([RunnableLambda(lambda x: -1)]).invoke(0)
    return {
        "listed": listed,
        "messages": [m.type for m in chat.invoke({"role": "a", "question": "b"}).messages],
        "answer": answer,
        "streamed": "".join(streamed),
        "batch": batch,
        "tool": [add.invoke({"a": 2, "b": 3}), add.name, sorted(add.args)],
        "found": found,
        "message": message.content,
        "retried": retried,
        "async": asyncio.run(chain.ainvoke({"things": "x"})),
        "human": HumanMessage("x").pretty_repr().splitlines()[-1],
    }
