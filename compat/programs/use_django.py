"""django: settings, a model on an SQLite file, views, templates, forms and the test client."""

from __future__ import annotations


def main(folder: str) -> object:
    import os

    import django
    from django.conf import settings
    from django.http import HttpResponse, JsonResponse
    from django.urls import path, reverse

    def hello(request: object, name: str) -> HttpResponse:
        from django.template import engines

        template = engines["django"].from_string("{% for i in items %}{{ i }},{% endfor %}{{ name|upper }}")
        return HttpResponse(template.render({"items": [1, 2], "name": name}, request))

    def data(request: object) -> JsonResponse:
        return JsonResponse({"method": request.method, "a": request.POST.get("a")})

    class Urls:
        urlpatterns = [path("hello/<str:name>/", hello, name="hello"), path("data/", data)]

    settings.configure(
        DEBUG=False,
        SECRET_KEY="secret",
        ALLOWED_HOSTS=["testserver"],
        ROOT_URLCONF=Urls,
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django.contrib.sessions"],
        MIDDLEWARE=[
            "django.middleware.common.CommonMiddleware",
            "django.contrib.sessions.middleware.SessionMiddleware",
        ],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.path.join(folder, "db.sqlite3")}},
        TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates"}],
        PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
        MEDIA_ROOT=os.path.join(folder, "media"),
        USE_TZ=True,
    )
    django.setup()

    from django import forms
    from django.contrib.auth.models import User
    from django.core.cache import cache
    from django.core.files.base import ContentFile
    from django.core.files.storage import default_storage
    from django.core.management import call_command
    from django.db import connection, models, transaction
    from django.test import Client

    class Item(models.Model):
        name = models.CharField(max_length=20, unique=True)
        price = models.DecimalField(max_digits=6, decimal_places=2)

        class Meta:
            app_label = "shop"

    class ItemForm(forms.ModelForm):
        class Meta:
            model = Item
            fields = ["name", "price"]

    call_command("migrate", verbosity=0)
    with connection.schema_editor() as editor:
        editor.create_model(Item)
    with transaction.atomic():
        Item.objects.bulk_create([Item(name="Pen", price="1.50"), Item(name="Book", price="9.00")])
    form = ItemForm({"name": "Pen", "price": "x"})
    user = User.objects.create_user("ann", password="pw")
    saved = default_storage.save("a.txt", ContentFile(b"content"))
    cache.set("k", 5)
    client = Client()
    hello_text = client.get(reverse("hello", args=["ann"])).content.decode()
    assert hello_text == "1,2,ANN"
    result = {
        "hello": hello_text,
        "data": client.post("/data/", {"a": "1"}).json(),
        "missing": client.get("/none/").status_code,
        "total": str(Item.objects.aggregate(total=models.Sum("price"))["total"]),
        "names": list(Item.objects.filter(price__gt=2).values_list("name", flat=True)),
        "errors": {field: len(errors) for field, errors in form.errors.items()},
        "user": [user.check_password("pw"), user.check_password("no")],
        "saved": default_storage.open(saved).read().decode(),
        "cache": cache.get("k"),
    }
    connection.close()
    return result
