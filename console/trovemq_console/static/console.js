// Adds to pages that work without it: refreshing, keys, the theme, the live tail, copying.
// Everything it inserts is markup that the server made, in which all text is escaped.

const TAIL_EVERY_MS = 1500;
const TAIL_ROWS_MAX = 300;

// --- refreshing: sections with data-refresh are taken from the page as it is now --------------------------------
const sections = () => [...document.querySelectorAll("[data-refresh]")];
let refreshing = false;

async function refresh() {
  if (refreshing || document.hidden || sections().some(busy)) return;
  refreshing = true;
  try {
    const reply = await fetch(location.href, { headers: { accept: "text/html" } });
    if (reply.redirected) return;
    const page = new DOMParser().parseFromString(await reply.text(), "text/html");
    for (const section of sections()) {
      const fresh = reply.ok && page.getElementById(section.id);
      if (fresh) replace(section, document.importNode(fresh, true));
      else stale(section);
    }
    markCut();
  } catch {
    sections().forEach(stale);
  } finally {
    refreshing = false;
  }
}

function replace(section, fresh) {
  section.querySelectorAll("details").forEach((one, i) => {
    const other = fresh.querySelectorAll("details")[i];
    if (other) other.open = one.open;
  });
  const rows = [...section.querySelectorAll("tbody tr")];
  const at = rows.findIndex((row) => row.classList.contains("current"));
  if (at >= 0) fresh.querySelectorAll("tbody tr")[at]?.classList.add("current");
  section.replaceWith(fresh);
}

function stale(section) {
  if (section.querySelector(".stale")) return;
  const note = document.createElement("p");
  note.className = "notice warn stale";
  note.textContent = "No answer now: these are the last known values. They are requested again.";
  section.prepend(note);
}

function busy(section) {
  const selection = getSelection();
  const selecting = selection && !selection.isCollapsed && section.contains(selection.anchorNode);
  return selecting || (section.contains(document.activeElement) && document.activeElement.matches("input, select, textarea"));
}

if (sections().length) {
  const seconds = Math.min(...sections().map((section) => Number(section.dataset.refresh)));
  setInterval(refresh, seconds * 1000);
  document.addEventListener("visibilitychange", refresh); // at once when the page is looked at again
}

// --- a page that the cluster did not answer: it is asked for until there is an answer -----------------------------
const AGAIN_EVERY_MS = 5000;
const again = document.getElementById("again");

let looking = false;

async function lookAgain() {
  if (looking || document.hidden) return;
  looking = true;
  try {
    const reply = await fetch(location.href, { headers: { accept: "text/html" } });
    if (reply.ok) location.reload();
  } catch {
    // the console does not answer either
  } finally {
    looking = false;
  }
}

if (again) {
  again.hidden = false;
  setInterval(lookAgain, AGAIN_EVERY_MS);
  document.addEventListener("visibilitychange", lookAgain);
}

// --- content that does not fit: tables that are wider than the screen, the text of a cell that is cut off --------------------
function markCut() {
  for (const one of document.querySelectorAll(".scroll")) {
    const cut = one.scrollWidth > one.clientWidth + 1;
    one.classList.toggle("cut", cut);
    cut ? one.setAttribute("tabindex", "0") : one.removeAttribute("tabindex");
  }
}
markCut();
document.defaultView?.addEventListener("resize", markCut);

document.addEventListener("mouseover", ({ target }) => {
  const cell = target.closest?.(".rows td");
  if (cell && cell.scrollWidth > cell.clientWidth) cell.title = cell.innerText;
});

// --- the live tail ------------------------------------------------------------------------------------------------
const tail = document.getElementById("tail");
if (tail) {
  let timer = 0;
  let asking = false;
  tail.hidden = false;
  const body = document.querySelector("#tailed tbody");
  const known = () => new Set([...body.rows].map((row) => row.dataset.id));
  async function look() {
    if (asking) return;
    asking = true;
    try {
      const reply = await fetch(`${tail.dataset.tail}&since=${tail.dataset.since}`);
      if (!reply.ok) throw new Error(String(reply.status));
      const fresh = document.createElement("template");
      fresh.innerHTML = await reply.text();
      const before = known();
      const rows = [...fresh.content.querySelectorAll("tr")].filter((row) => !before.has(row.dataset.id));
      rows.forEach((row) => row.classList.add("fresh"));
      body.prepend(...rows);
      if (rows.length) tail.dataset.since = rows[0].dataset.at;
      if (rows.length) document.getElementById("none")?.remove();
      while (body.rows.length > TAIL_ROWS_MAX) body.lastElementChild.remove();
      tail.textContent = "Live tail: on";
    } catch {
      tail.textContent = "Live tail: no answer, trying again";
    } finally {
      asking = false;
    }
  }
  tail.addEventListener("click", () => {
    const on = tail.getAttribute("aria-pressed") !== "true";
    tail.setAttribute("aria-pressed", String(on));
    clearInterval(timer);
    tail.textContent = "Live tail";
    if (on) {
      look();
      timer = setInterval(look, TAIL_EVERY_MS);
    }
  });
}

// --- the theme ----------------------------------------------------------------------------------------------------
function switchTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("theme", root.dataset.theme);
}
document.getElementById("theme").addEventListener("click", switchTheme);

// --- keys -----------------------------------------------------------------------------------------------------------
const rowsOfPage = () => [...document.querySelectorAll("table.rows tbody tr")].filter((row) => row.querySelector("a"));

function move(step) {
  const rows = rowsOfPage();
  if (!rows.length) return;
  const at = rows.findIndex((row) => row.classList.contains("current"));
  const next = at < 0 ? (step > 0 ? 0 : rows.length - 1) : Math.min(Math.max(at + step, 0), rows.length - 1);
  rows[at]?.classList.remove("current");
  rows[next].classList.add("current");
  rows[next].scrollIntoView({ block: "nearest" });
}

const keys = {
  "/": () => {
    const box = document.getElementById("search");
    box?.focus();
    box?.select();
  },
  ArrowDown: () => move(1),
  ArrowUp: () => move(-1),
  j: () => move(1),
  k: () => move(-1),
  t: switchTheme,
  "?": () => document.getElementById("keys").showModal(),
};

document.addEventListener("keydown", (event) => {
  const typing = event.target.matches("input, textarea, select");
  if (typing && event.key === "Escape") event.target.blur();
  if (typing || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.key === "Enter" && document.activeElement === document.body) {
    document.querySelector("tr.current a")?.click();
    return;
  }
  if (event.target.matches("pre") && event.key.startsWith("Arrow")) return;
  const act = keys[event.key];
  if (act) {
    event.preventDefault();
    act();
  }
});

// --- small things -------------------------------------------------------------------------------------------------
document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (button) {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "Copied";
  }
  if (event.target.matches("[data-back]")) {
    event.preventDefault();
    history.back();
  }
});
document.addEventListener("change", (event) => {
  const name = event.target.dataset.all;
  if (name) document.querySelectorAll(`input[name="${name}"]`).forEach((box) => (box.checked = event.target.checked));
});
if (navigator.clipboard) document.querySelectorAll("[data-copy]").forEach((button) => (button.hidden = false));
