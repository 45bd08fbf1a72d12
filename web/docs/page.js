// The interactive API reference: Swagger UI on the workspace's own OpenAPI document. It stores nothing.
const byId = (id) => document.getElementById(id);
const [kind, credential] = [byId("kind"), byId("credential")];
document.querySelector(".host").textContent = location.host;

/** The Authorization header for a credential (contract 2.1, 4.1). A whole header is taken as it is, whatever the kind. */
function authorization() {
  const value = credential.value.trim();
  if (value === "" || kind.value === "header" || /^(token|id)="|^Bearer /.test(value)) return value;
  return kind.value === "operator" ? `Bearer ${value}` : `token="${value}"`;
}

byId("forget").addEventListener("click", () => {
  credential.value = "";
  credential.focus();
});
document.querySelector("form").addEventListener("submit", (event) => event.preventDefault());

const dark = matchMedia("(prefers-color-scheme: dark)");
const setScheme = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", setScheme);
setScheme();

const nothing = () => () => null;

window.SwaggerUIBundle({
  url: "/api/schema/",
  domNode: byId("reference"),
  deepLinking: true,
  docExpansion: "none",
  defaultModelsExpandDepth: 0,
  displayRequestDuration: true,
  tryItOutEnabled: true,
  // Null: it would send the document's address to another origin.
  validatorUrl: null,
  requestInterceptor(request) {
    const value = authorization();
    if (value !== "" && !request.loadSpec) request.headers.Authorization = value;
    return request;
  },
  // The field above replaces its dialog, which knows no quotes. There is one server: this workspace.
  plugins: [{ wrapComponents: { authorizeBtn: nothing, authorizeOperationBtn: nothing, ServersContainer: nothing } }],
});
