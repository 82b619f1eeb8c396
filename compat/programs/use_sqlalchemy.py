"""sqlalchemy: ORM and Core on an SQLite file."""

from __future__ import annotations


def main(folder: str) -> object:
    import os

    from sqlalchemy import Column, ForeignKey, Integer, String, create_engine, event, func, inspect, select, text
    from sqlalchemy.exc import IntegrityError
    from sqlalchemy.orm import DeclarativeBase, Session, relationship, selectinload

    class Base(DeclarativeBase):
        pass

    class Author(Base):
        __tablename__ = "author"
        id = Column(Integer, primary_key=True)
        name = Column(String(30), unique=True)
        books = relationship("Book", back_populates="author", cascade="all, delete-orphan")

    class Book(Base):
        __tablename__ = "book"
        id = Column(Integer, primary_key=True)
        title = Column(String(50))
        author_id = Column(ForeignKey("author.id"))
        author = relationship("Author", back_populates="books")

    engine = create_engine("sqlite:///" + os.path.join(folder, "books.db"))
    statements = []
    event.listen(engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add(Author(name="Ann", books=[Book(title="One"), Book(title="Two")]))
        session.add(Author(name="Bob", books=[Book(title="Three")]))
        session.commit()
    with Session(engine) as session:
        counts = session.execute(
            select(Author.name, func.count(Book.id)).join(Book).group_by(Author.name).order_by(Author.name)
        ).all()
        ann = session.scalars(select(Author).options(selectinload(Author.books)).where(Author.name == "Ann")).one()
        titles = sorted(book.title for book in ann.books)
        session.delete(ann)
        session.commit()
        session.add(Author(name="Bob"))
        try:
            session.commit()
            error = ""
        except IntegrityError as problem:
            session.rollback()
            error = type(problem.orig).__name__
    with engine.begin() as connection:
        left = connection.execute(text("select count(*) from book where title != :t"), {"t": "x"}).scalar_one()
    tables = inspect(engine).get_table_names()
    engine.dispose()
    assert left == 1
    return {
        "counts": [list(row) for row in counts],
        "titles": titles,
        "error": error,
        "tables": tables,
        "statements": len(statements),
    }
