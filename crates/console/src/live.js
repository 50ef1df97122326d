// Replaces what has changed, once a second. The page works without it.
const pause = document.getElementById("pause");
pause.parentElement.hidden = false;

// How a page is shown that was parsed.
let shown = (page) => page;
const parse = async (answer) => shown(new DOMParser().parseFromString(await answer.text(), "text/html"));

// What the focused element is called in the new contents of its part.
const name = (element) => element.id || element.getAttribute("href");

// Why the figures are old.
const stale = document.createElement("p");
Object.assign(stale, { id: "stale", className: "alert", role: "alert" });
let seen = performance.now();
// A page that answers a form has the address of the form, and links to its own.
const own = document.querySelector("a[rel=bookmark]")?.href ?? location.pathname + location.search;
function old(why) {
  const seconds = Math.round((performance.now() - seen) / 1000);
  if (!stale.isConnected) document.querySelector("main").prepend(stale);
  // It is read aloud each time.
  const age = seconds < 10 ? seconds : seconds - (seconds % 10);
  const text = `${why} These figures are ${age} s old.`;
  if (stale.textContent !== text) stale.textContent = text;
}

async function refresh() {
  const began = performance.now();
  try {
    // The clock alone is no reason to ask.
    if (pause.checked || document.hidden || !document.querySelector("main [data-live]")) return;
    const signal = AbortSignal.timeout(10_000);
    const answer = await fetch(own, { headers: { "x-live": "1" }, signal });
    if (!answer.ok) return old(`The answer was ${answer.status}.`);
    const page = await parse(answer);
    if (!page.getElementById("clock")) return old("Another page came, perhaps to log in: reload this one.");
    seen = performance.now();
    stale.remove();
    const selected = getSelection();
    for (const old of document.querySelectorAll("[data-live]")) {
      const live = page.getElementById(old.id);
      if (!live || live.innerHTML === old.innerHTML) continue;
      // Text that is selected is about to be copied.
      if (!selected.isCollapsed && old.contains(selected.anchorNode)) continue;
      const focused = old.contains(document.activeElement) && name(document.activeElement);
      old.innerHTML = live.innerHTML;
      if (focused) [...old.querySelectorAll("a, button")].find((e) => name(e) === focused)?.focus();
      // From now on it belongs to the person.
      if ("last" in live.dataset) delete old.dataset.live;
    }
  } catch {
    old(document.body.dataset.stopped);
  } finally {
    // A page that takes long is asked for less often.
    setTimeout(refresh, Math.max(1000, 10 * (performance.now() - began)));
  }
}
setTimeout(refresh, 1000);

// Continues a search until the page is full or left.
async function search() {
  const rest = document.getElementById("rest");
  const on = rest?.querySelector("a[data-search]");
  const rows = document.querySelector("#rows tbody");
  if (!on || pause.checked || rows?.rows[39]) return;
  if (document.hidden) return setTimeout(search, 1000);
  const found = (await parse(await fetch(on.href))).getElementById("found");
  if (!found) return on.append(" (it has stopped)");
  rows?.append(...found.querySelectorAll("#rows tbody tr"));
  if (rows) rest.replaceWith(found.querySelector("#rest"));
  else document.getElementById("found").replaceWith(found);
  search();
}
search();

// The local time, and how long ago it was.
const units = { day: 86400, hour: 3600, minute: 60, second: 1 };
addEventListener("mouseover", ({ target }) => {
  const time = target.closest?.("time[datetime]");
  if (!time) return;
  const at = new Date(time.dateTime);
  const seconds = (at - Date.now()) / 1000;
  const unit = Object.keys(units).find((unit) => Math.abs(seconds) >= units[unit]) ?? "second";
  const ago = new Intl.RelativeTimeFormat("en").format(Math.round(seconds / units[unit]), unit);
  time.title = `${ago}: ${at.toLocaleString()} here`;
});
