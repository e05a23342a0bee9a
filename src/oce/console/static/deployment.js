// Refresh the deployment panel while the deployment is not over.
const panel = document.getElementById("deployment");
const OPEN = new Set(["queued", "running"]);
const PAUSE_MS = 1000;

function status() {
  return panel.querySelector("[data-status]")?.dataset.status ?? "";
}

async function refresh() {
  const answer = await fetch(panel.dataset.source, { cache: "no-store", redirect: "error" });
  if (answer.ok) {
    const parsed = new DOMParser().parseFromString(await answer.text(), "text/html");
    panel.replaceChildren(...parsed.body.childNodes);
  }
}

async function follow() {
  const started = status();
  do {
    await refresh();
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
  } while (OPEN.has(status()));
  if (OPEN.has(started)) location.reload();
}

follow().catch(() => panel.append("The page lost its connection; reload to see the current state."));
