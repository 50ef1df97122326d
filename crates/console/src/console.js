const make = (name, properties) => Object.assign(document.createElement(name), properties);

// Selects all events of the list.
const selected = document.querySelector("#selected .row");
if (selected) {
  const all = make("input", { type: "checkbox", id: "all" });
  all.onchange = () => document.querySelectorAll("#rows input").forEach((box) => (box.checked = all.checked));
  const label = make("label", { className: "check" });
  label.append(all, "All on this page");
  selected.prepend(label);
}

// Copies a payload, a key, or the id of a chat. Browsers allow it under HTTPS and at localhost.
for (const text of navigator.clipboard ? document.querySelectorAll("pre, dl:not(#headers, #filter) :is(code, a[href*='chat?'])") : []) {
  const what = text.ariaLabel ?? text.closest("dd").previousElementSibling.textContent;
  const copy = make("button", { type: "button", className: "copy", textContent: "Copy", ariaLabel: `Copy ${what.toLowerCase()}` });
  copy.onclick = async () => {
    const id = text.href && new URL(text.href).searchParams.get("id");
    await navigator.clipboard.writeText(id ?? text.textContent);
    copy.textContent = "Copied";
  };
  if (text.matches("pre")) text.before(copy);
  else text.after(" ", copy);
}

// Shows times in UTC, or except in charts and forms in the zone of the browser.
const zone = document.getElementById("zone");
const choose = make("button", { textContent: "Show local times" });
if (localStorage.local) {
  shown = (page) => {
    for (const time of page.querySelectorAll("time[datetime]:not([data-label])")) {
      const at = new Date(time.dateTime).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" });
      // With the year, if it had one.
      time.textContent = at.replace(time.textContent[15] ? "," : / \d+,/, "");
    }
    return page;
  };
  shown(document);
  zone.textContent = "Times are local, and in charts and forms UTC.";
  choose.textContent = "Show UTC";
}
choose.onclick = () => {
  localStorage.local = localStorage.local ? "" : 1;
  location.replace(own);
};
zone.append(" ", choose);
