"""Public suffixes: names below which unrelated parties can register names. A wildcard over one would allow them all.

This prevents an accident in a manifest and is not the Public Suffix List: that list changes weekly, and a policy must
not change its meaning with an update. Three tests need no external data:

* a single label (``com``, ``uk``, ``localhost``, ``internal``);
* a registry label below a two-letter country domain (``co.uk``, ``com.au``, ``or.jp``);
* a short table of second-level registries that the pattern misses, and of hosting services with public names.
"""

from __future__ import annotations

import re

_COUNTRY = re.compile(r"([a-z]+)\.[a-z]{2}")

_REGISTRY_LABELS = frozenset(
    {
        *("ac", "co", "com", "edu", "ed", "gen", "go", "gob", "gouv", "gov", "govt", "gub", "info", "lg", "ltd"),
        *("me", "mil", "name", "ne", "net", "nhs", "nom", "or", "org", "plc", "police", "sch", "school", "web"),
    }
)

_REGISTRIES = frozenset(
    {
        *("asn.au", "id.au", "blog.br", "eco.br", "firm.in", "ind.in", "ad.jp", "gr.jp", "geek.nz", "iwi.nz"),
        *("kiwi.nz", "maori.nz", "in.th", "mi.th", "idv.tw", "game.tw", "ebiz.tw", "in.ua", "pp.ua", "biz.tr"),
        *("pe.kr", "re.kr", "asso.fr", "tm.fr", "eu.org", "uk.com", "us.com", "eu.com", "de.com", "cn.com", "br.com"),
        *("gb.net", "uk.net", "se.net", "in.net", "bel.tr", "priv.no", "pp.se", "biz.id", "my.id", "desa.id"),
    }
)

_HOSTING = frozenset(
    {
        *("github.io", "githubusercontent.com", "gitlab.io", "bitbucket.io", "readthedocs.io", "netlify.app"),
        *("vercel.app", "now.sh", "pages.dev", "workers.dev", "r2.dev", "fly.dev", "onrender.com", "up.railway.app"),
        *("herokuapp.com", "surge.sh", "glitch.me", "repl.co", "replit.app", "replit.dev", "deno.dev", "hf.space"),
        *("streamlit.app", "modal.run", "web.app", "firebaseapp.com", "firebaseio.com", "appspot.com", "run.app"),
        *("a.run.app", "cloudfunctions.net", "azurewebsites.net", "azureedge.net", "cloudapp.net", "azurefd.net"),
        *("blob.core.windows.net", "web.core.windows.net", "cloudapp.azure.com", "azurestaticapps.net"),
        *("s3.amazonaws.com", "cloudfront.net", "elasticbeanstalk.com", "awsapprunner.com", "amplifyapp.com"),
        *("compute.amazonaws.com", "elb.amazonaws.com", "execute-api.amazonaws.com", "on.aws"),
        *("ondigitalocean.app", "ngrok.io", "ngrok.app", "ngrok-free.app", "ngrok.dev", "trycloudflare.com", "ts.net"),
        *(
            "digitaloceanspaces.com",
            "loca.lt",
            "duckdns.org",
            "no-ip.org",
            "dyndns.org",
            "ddns.net",
            "sslip.io",
            "nip.io",
            "xip.io",
        ),
        *("blogspot.com", "wordpress.com", "wixsite.com", "weebly.com", "myshopify.com", "supabase.co"),
        *("digitaloceanspaces.com", "backblazeb2.com"),
    }
)


def is_public_suffix(name: str) -> bool:
    """Return whether unrelated parties get names directly below this normalized name."""
    if "." not in name or name in _REGISTRIES or name in _HOSTING:
        return True
    below_country = _COUNTRY.fullmatch(name)
    return below_country is not None and below_country.group(1) in _REGISTRY_LABELS
