// Keeps the page live: journal rows are put on top of their lists, parts that changed are put in place.
"use strict";

// The values under the pointer stand beside a chart's name.
document.addEventListener("pointerover", (event) => {
  const hit = event.target.closest(".hit");
  if (hit) hit.closest("figure").querySelector(".readout").textContent = hit.querySelector("title").textContent;
});

(() => {
  const QUIET_MS = 40000;
  const AGAIN_MS = 10000;
  const main = document.querySelector("main[data-stream]");
  const link = document.getElementById("link");
  if (!main || !window.EventSource) return;

  let seq = Number(main.dataset.seq);
  let source = null;
  let quiet = 0;
  let again = 0;

  const say = (text, state) => {
    if (link.textContent !== text) link.textContent = text;
    link.dataset.state = state;
  };

  const fragment = (html) => {
    const template = document.createElement("template");
    template.innerHTML = html;
    return template.content;
  };

  const anew = () => {
    source.close();
    window.location.reload();
  };

  const heard = () => {
    window.clearTimeout(quiet);
    quiet = window.setTimeout(connect, QUIET_MS);
    say("live", "on");
  };

  const reached = (event) => {
    const at = Number(event.lastEventId);
    if (at > seq) seq = at;
  };

  // A decision that says the same as the one before it on the same subject takes its row, with the count.
  const collapse = (list, newest) => {
    const { subject, repeats } = newest.dataset;
    if (!repeats) return;
    const before = [...list.children].find((row) => row !== newest && row.dataset.subject === subject);
    if (!before || before.dataset.repeats !== repeats) return;
    newest.dataset.count = String(Number(before.dataset.count) + 1);
    const shown = newest.querySelector(".repeats");
    shown.querySelector("b").textContent = `${newest.dataset.count} times`;
    shown.querySelector("time").replaceWith(before.querySelector(".repeats time"));
    shown.hidden = false;
    before.remove();
  };

  const addRow = (listId) => (event) => {
    heard();
    const row = JSON.parse(event.data);
    const list = document.getElementById(listId);
    // What was there when the page was rendered, or came before the connection broke, is not added twice.
    if (row.seq > seq && !document.getElementById(`seq-${row.seq}`)) {
      list.prepend(fragment(row.html));
      const newest = list.firstElementChild;
      newest.classList.add("new");
      collapse(list, newest);
      while (list.children.length > Number(list.dataset.keep)) list.lastElementChild.remove();
    }
    reached(event);
  };

  const putParts = (event) => {
    heard();
    reached(event);
    const parts = JSON.parse(event.data).parts;
    const places = new Map([...document.querySelectorAll("[data-part]")].map((place) => [place.dataset.part, place]));
    // A fleet has come: its card is not on this page yet.
    if (Object.keys(parts).some((name) => !places.has(name))) return anew();
    for (const [name, html] of Object.entries(parts)) {
      const place = places.get(name);
      const old = document.createElement("template");
      old.innerHTML = html;
      if (old.innerHTML === place.innerHTML) continue;
      const focused = place.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
      place.replaceChildren(old.content);
      if (focused) [...place.querySelectorAll("a")].find((a) => a.getAttribute("href") === focused)?.focus();
    }
  };

  function connect() {
    if (source) source.close();
    window.clearTimeout(again);
    const address = new URL(main.dataset.stream, window.location.href);
    address.searchParams.set("since", String(seq));
    source = new EventSource(address);
    source.addEventListener("hello", (event) => {
      heard();
      if (JSON.parse(event.data).build !== main.dataset.build) anew();
    });
    source.addEventListener("decision", addRow("decision-list"));
    source.addEventListener("event", addRow("event-list"));
    source.addEventListener("parts", putParts);
    source.addEventListener("beat", heard);
    source.addEventListener("reload", anew);
    source.onerror = () => {
      window.clearTimeout(quiet);
      say("not live: connecting again", "off");
      // A refusal ends an EventSource for good; a broken connection it takes up again by itself.
      if (source.readyState === EventSource.CLOSED) again = window.setTimeout(connect, AGAIN_MS);
    };
  }

  say("connecting", "off");
  connect();
  window.addEventListener("pagehide", () => source.close());
  window.addEventListener("pageshow", (event) => {
    if (event.persisted) connect();
  });
})();
