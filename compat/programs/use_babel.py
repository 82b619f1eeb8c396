"""babel: numbers, dates, plural rules, and message catalogues in files."""

from __future__ import annotations


def main(folder: str) -> object:
    import datetime
    import gettext
    import io
    import os

    from babel import Locale, dates, lists, numbers, units
    from babel.messages.catalog import Catalog
    from babel.messages.extract import extract
    from babel.messages.mofile import write_mo
    from babel.messages.pofile import read_po, write_po

    moment = datetime.datetime(2024, 2, 29, 15, 30, tzinfo=datetime.timezone.utc)
    german = Locale.parse("de_DE")
    found = list(extract("python", io.BytesIO(b"_('Hello')\nngettext('one', 'many', n)\n")))
    catalog = Catalog(locale="de", project="shop")
    catalog.add("Hello", "Hallo")
    catalog.add(("{n} book", "{n} books"), ("{n} Buch", "{n} B\u00fccher"))
    po = os.path.join(folder, "messages.po")
    with open(po, "wb") as file:
        write_po(file, catalog)
    with open(po, "rb") as file:
        again = read_po(file, locale="de")
    mo = os.path.join(folder, "messages.mo")
    with open(mo, "wb") as file:
        write_mo(file, again)
    with open(mo, "rb") as file:
        translate = gettext.GNUTranslations(file)
    assert translate.gettext("Hello") == "Hallo"
    return {
        "currency": numbers.format_currency(1234.5, "EUR", locale="de_DE"),
        "decimal": numbers.format_decimal(1234567.891, locale="en_IN"),
        "percent": numbers.format_percent(0.256, locale="fr", format="#,##0.0%"),
        "date": dates.format_datetime(moment, "full", tzinfo=dates.get_timezone("Europe/Paris"), locale="fr"),
        "delta": dates.format_timedelta(datetime.timedelta(hours=3), locale="es"),
        "parsed": str(numbers.parse_decimal("1.099,98", locale="de")),
        "plural": [Locale("ru").plural_form(n) for n in (1, 2, 5)],
        "names": [german.get_display_name("en"), german.territories["FR"]],
        "list": lists.format_list(["a", "b", "c"], locale="en"),
        "unit": units.format_unit(12, "length-meter", locale="it"),
        "extracted": [str(item[1]) for item in found],
        "books": translate.ngettext("{n} book", "{n} books", 3),
    }
