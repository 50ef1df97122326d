// Once a second, puts in place what has changed. The page does without.
const pause = document.getElementById("pause");
pause.parentElement.hidden = false;

async function refresh() {
  try {
    if (pause.checked || document.hidden) return;
    const answer = await fetch("/live");
    if (!answer.ok) return;
    const now = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const old of document.querySelectorAll("[data-live]")) {
      const live = now.getElementById(old.id);
      if (!live || live.innerHTML === old.innerHTML) continue;
      const focused = old.contains(document.activeElement) && document.activeElement.id;
      old.innerHTML = live.innerHTML;
      if (focused) document.getElementById(focused)?.focus();
    }
  } catch {
    document.getElementById("clock").textContent = "The sandbox has stopped.";
  } finally {
    setTimeout(refresh, 1000);
  }
}
setTimeout(refresh, 1000);
