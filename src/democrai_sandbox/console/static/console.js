"use strict";
// Optional: every decision works without this file. Untrusted text is inserted as text, never as HTML.
(() => {
  const root = document.documentElement;

  // ---- colors: set before the page is drawn ----------------------------------------------------------------------
  const themes = ["system", "light", "dark"];
  const dress = (theme) => {
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
    else delete root.dataset.theme;
  };
  try {
    dress(localStorage.getItem("theme"));
  } catch {
    // Not stored.
  }

  function themeButtons() {
    const buttons = [...document.querySelectorAll("button.theme")];
    const say = () => buttons.forEach((one) => { one.querySelector("span").textContent = root.dataset.theme || "system"; });
    for (const button of buttons) {
      button.hidden = false;
      button.addEventListener("click", () => {
        const next = themes[(themes.indexOf(root.dataset.theme || "system") + 1) % themes.length];
        dress(next);
        say();
        try {
          localStorage.setItem("theme", next);
        } catch {
          // Not stored.
        }
      });
    }
    say();
  }

  // ---- helpers -------------------------------------------------------------------------------------------------
  function element(name, attributes = {}, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }

  function news(text, label, href) {
    const place = document.getElementById("news");
    if (!place || place.dataset.text === text) return;
    place.dataset.text = text;
    const line = element("p", {}, text);
    if (label) line.append(element("a", { href }, label));
    place.replaceChildren(line);
  }

  // ---- rows -------------------------------------------------------------------------------------------------------
  const rows = () => [...document.querySelectorAll("table.rows tbody tr")];
  const current = () => document.querySelector("table.rows tbody tr.here");

  function mark(row) {
    current()?.classList.remove("here");
    row.classList.add("here");
  }

  function move(step) {
    const all = rows();
    if (!all.length) return;
    const at = all.indexOf(current());
    const next = all[at < 0 ? (step > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, at + step))];
    mark(next);
    next.querySelector("a.open")?.focus();
  }

  function followFocus() {
    document.addEventListener("focusin", (event) => {
      const row = event.target.closest?.("table.rows tbody tr");
      if (row) mark(row);
    });
  }

  // ---- bulk decisions: the buttons are enabled while rows are selected ------------------------------------------
  function followSelection() {
    const form = document.getElementById("bulk");
    if (!form) return;
    const none = !document.querySelector('input[type="checkbox"][form="bulk"]:checked');
    form.querySelectorAll("button").forEach((button) => { button.disabled = none; });
  }

  // ---- deciding by key: asks first, with the focus on the neutral button ------------------------------------------
  const would = { s: "Allowed until that session ends:", d: "Denied from now on, to every user and session:" };

  // A permanent approval has a confirmation page.
  function press(key) {
    const button = document.querySelector(`button[data-key="${key}"]`);
    if (button && !button.disabled) button.form.requestSubmit(button);
  }

  function ask(key) {
    const button = document.querySelector(`button[data-key="${key}"]`);
    if (!button || button.disabled) return false;
    const choice = button.form.querySelector('input[name="choice"]:checked')?.closest(".choice");
    const target = choice?.querySelector(".target")?.textContent || "";
    const words = key === "d" ? target : choice?.querySelector(".words")?.textContent || "";
    const warning = choice?.querySelector(".warning")?.textContent || "";
    const back = element("button", { type: "button" }, "Back without deciding");
    const go = element("button", { type: "button", class: button.className }, button.textContent);
    const title = element("h2", { id: "ask-title" }, `${button.textContent}?`);
    const dialog = element("dialog", { "aria-labelledby": "ask-title" }, title, element("p", {}, would[key]), element("p", { class: "rule" }, words));
    if (warning && key !== "d") dialog.append(element("p", { class: "error" }, warning));
    dialog.append(element("div", { class: "acts" }, back, go));
    back.addEventListener("click", () => dialog.close());
    go.addEventListener("click", () => {
      dialog.close();
      button.form.requestSubmit(button);
    });
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
    back.focus();
    return true;
  }

  // ---- ended session: the input is restored after the sign-in -------------------------------------
  const fields = () => [...document.querySelectorAll('main form[method="post"] :is(textarea, select, input[type="radio"])')];

  function saveDraft() {
    const values = fields().map((field) => [field.name, field.type === "radio" ? field.checked : field.value]);
    try {
      sessionStorage.setItem("draft", JSON.stringify([location.pathname, values]));
    } catch {
      // Not stored.
    }
  }

  function restoreDraft() {
    let page, values;
    try {
      [page, values] = JSON.parse(sessionStorage.getItem("draft") || "[]");
      if (page === location.pathname) sessionStorage.removeItem("draft");
    } catch {
      return;
    }
    const found = fields();
    if (page !== location.pathname || values.length !== found.length) return;
    if (found.some((field, place) => field.name !== values[place][0])) return;
    found.forEach((field, place) => {
      const value = values[place][1];
      if (field.type === "radio") field.checked = value === true;
      else field.value = value;
    });
    news("Your input is restored; nothing was decided.");
  }

  // ---- keys -------------------------------------------------------------------------------------------------------
  const acts = {
    j: () => move(1),
    k: () => move(-1),
    o: () => current()?.querySelector("a.open")?.click(),
    x: () => current()?.querySelector('input[type="checkbox"]')?.click(),
    "/": () => document.querySelector('input[type="search"]')?.focus(),
    "?": () => document.getElementById("keys")?.showModal(),
    s: () => ask("s"),
    a: () => press("a"),
    d: () => ask("d"),
  };

  function keys() {
    document.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.repeat && !"jk".includes(event.key)) return;
      if (event.target.closest?.('input:not([type="checkbox"], [type="radio"]), textarea, select, [contenteditable]')) return;
      if (document.querySelector("dialog[open]") || !Object.hasOwn(acts, event.key)) return;
      event.preventDefault();
      acts[event.key]();
    });
  }

  // ---- live updates: report changes without moving rows ------------------------------------------------------
  function live() {
    const { live: stream, states, since, request, state } = document.body.dataset;
    if (!stream || !window.EventSource) return;
    let seen = document.body.dataset.pulse;
    let waiting = 0;
    let asked = 0;
    let source = null;
    let over = false;

    const look = async () => {
      waiting = 0;
      asked = Date.now();
      const query = new URLSearchParams(location.search);
      query.delete("after");
      query.set("ids", request || rows().map((row) => row.dataset.id).filter(Boolean).join(","));
      if (since) query.set("since", since);
      const answer = await fetch(`${states}?${query}`, { headers: { "X-Live": "1" }, redirect: "manual" });
      if (answer.type === "opaqueredirect") return signedOut();
      if (!answer.ok) return;
      const told = await answer.json();
      seen = told.pulse;
      if (request) changed(told.states[request]);
      else {
        for (const [id, became] of Object.entries(told.states)) markRow(id, became);
        if (told.new) news(`${told.new} new ${told.new === 1 ? "request" : "requests"} – `, "show", location.href.split("#")[0]);
      }
    };

    const signedOut = () => {
      over = true;
      source.close();
      news("You are signed out – ", "sign in", location.href);
      document.querySelector("#news a")?.addEventListener("click", saveDraft);
    };

    const changed = (now) => {
      if (now && now.state !== state) news(`In the meantime this was ${now.words} – `, "show", location.pathname);
    };

    // Many pages get the same change at once: spread their requests.
    const soon = () => {
      if (waiting || over || document.hidden) return;
      waiting = setTimeout(() => look().catch(() => {}), Math.max(asked + 2000 - Date.now(), 0) + Math.random() * 800);
    };

    const listen = () => {
      source = new EventSource(stream);
      source.addEventListener("pulse", (event) => {
        if (event.data === seen) return;
        seen = event.data;
        soon();
      });
      source.addEventListener("over", signedOut);
      // The browser reopens a lost connection, but not a refused one: the next request gets the reason.
      source.addEventListener("error", async () => {
        if (source.readyState !== EventSource.CLOSED || over) return;
        await look().catch(() => {});
        if (!over) setTimeout(listen, 30000);
      });
    };
    listen();
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) soon();
    });
    window.addEventListener("pagehide", () => {
      over = true;
      source.close();
    });
    window.addEventListener("pageshow", (event) => {
      if (event.persisted) location.reload();
    });
  }

  function markRow(id, became) {
    const row = rows().find((one) => one.dataset.id === id);
    const place = row?.querySelector(".became");
    if (!place || became.state === "pending" || row.dataset.shown === became.state) return;
    place.textContent = became.words;
    row.classList.add("gone");
    const tick = row.querySelector('input[type="checkbox"]');
    if (tick) {
      tick.checked = false;
      tick.disabled = true;
      followSelection();
    }
  }

  function replace(id, page) {
    const fresh = page.getElementById(id);
    if (fresh) document.getElementById(id)?.replaceWith(document.importNode(fresh, true));
  }

  // ---- running work: parts of a page that are fetched again ---------------------------------------
  function refresh(part) {
    const seconds = Number(part?.dataset.refresh);
    if (!seconds || !part.id) return;
    setTimeout(async () => {
      if (document.hidden || part.contains(document.activeElement)) return refresh(part);
      const answer = await fetch(location.href, { headers: { "X-Live": "1" }, redirect: "manual" }).catch(() => null);
      if (answer?.type === "opaqueredirect") return;  // signed out
      if (!answer?.ok) return refresh(part);  // the server is unreachable: retry
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (!page.getElementById(part.id)) return;
      for (const id of [part.id, ...(part.dataset.with || "").split(" ").filter(Boolean)]) replace(id, page);
      // The message of an action can be outdated, such as a started task that has failed.
      if (!page.getElementById("message")) document.getElementById("message")?.remove();
      refresh(document.getElementById(part.id));
    }, seconds * 1000);
  }

  document.addEventListener("DOMContentLoaded", () => {
    themeButtons();
    followFocus();
    followSelection();
    document.addEventListener("change", followSelection);
    window.addEventListener("pageshow", followSelection);
    keys();
    restoreDraft();
    live();
    document.querySelectorAll("[data-refresh]").forEach(refresh);
  });
})();
