const byId = (id) => document.getElementById(id);
const query = new URLSearchParams(location.search);
const key = query.get("key") ?? "";
// The key does not stay in the address bar or the history.
if (key !== "") history.replaceState(history.state, "", location.pathname);
const RETRY = "That did not work. Please try again in a moment.";

/** Shows one view, and moves the focus to it. */
function show(id, isFirst) {
  for (const view of document.querySelectorAll("section")) view.hidden = view.id !== id;
  const view = byId(id);
  document.title = `${view.querySelector("h1").textContent} · Farhand`;
  if (!isFirst) view.querySelector("[tabindex]").focus();
}

/** Fills an element with texts, one child element each. */
function fill(element, tag, texts) {
  element.replaceChildren(...texts.map((text) => Object.assign(document.createElement(tag), { textContent: text })));
}

const post = (path, body) =>
  fetch(`/api/auth/reset-password/${path}`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    redirect: "error",
    signal: AbortSignal.timeout(30_000),
  });

/** Calls `send` for each submit, one call at a time. Shows the texts it returns above the form. */
function onSubmit(form, send) {
  const button = form.querySelector("button");
  const alert = form.previousElementSibling;
  const label = button.textContent;
  let isBusy = false;
  const setBusy = (busy) => {
    isBusy = busy;
    // Not `disabled`: a disabled button loses the focus.
    button.setAttribute("aria-disabled", busy);
    button.textContent = busy ? "One moment…" : label;
  };
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (isBusy) return;
    setBusy(true);
    fill(alert, "p", []);
    const texts = await send().catch(() => [RETRY]);
    setBusy(false);
    fill(alert, "p", texts);
    if (texts.length > 0) alert.scrollIntoView({ block: "nearest" });
  });
}

const password = byId("password");

function setProblems(texts) {
  fill(byId("problems"), "li", texts);
  password.setAttribute("aria-invalid", texts.length > 0);
  if (texts.length > 0) password.focus();
}

onSubmit(byId("choose").querySelector("form"), async () => {
  setProblems([]);
  const response = await post(`confirm/${encodeURIComponent(key)}/`, { new_password: password.value });
  const next = { 200: "done", 404: "invalid" }[response.status];
  if (next) {
    password.value = "";
    show(next);
    return [];
  }
  if (response.status !== 400) return [RETRY];
  const { new_password: problems = [], ...others } = await response.json();
  setProblems(problems);
  const texts = Object.values(others).filter(Array.isArray).flat();
  return problems.length + texts.length > 0 ? texts : [RETRY];
});

byId("show").addEventListener("change", ({ target }) => {
  password.type = target.checked ? "text" : "password";
});

const email = byId("email");

onSubmit(byId("invalid").querySelector("form"), async () => {
  const address = email.value.trim();
  const { status } = await post("", { email: address });
  if (status === 403) return ["Too many links were requested for this address recently. Use the latest mail, or try again tomorrow."];
  if (status === 429) return ["Too many requests came from your network. Please try again in an hour."];
  if (status !== 200) return [RETRY];
  byId("address").textContent = address;
  show("sent");
  return [];
});

byId("again").addEventListener("click", () => {
  show("invalid");
  email.focus();
  email.select();
});

for (const host of document.querySelectorAll(".host")) host.textContent = location.host;
// A key of dots would change the request's path.
show(query.get("error") === "invalid" || /^\.{0,2}$/.test(key) ? "invalid" : "choose", true);
