// Counts the calls from wasm into JavaScript. Import this module before the Worker, because the
// Worker creates its wasm instance when it is loaded.

/** The number of calls of each imported function, by its name without the hash. */
export const calls = {};

// Node.js's types have no value `WebAssembly`.
const { WebAssembly } = /** @type {any} */ (globalThis);
const { Instance } = WebAssembly;

function counted(name, imported) {
  return typeof imported !== "function" ? imported : (...values) => {
    calls[name] = (calls[name] ?? 0) + 1;
    return imported(...values);
  };
}

WebAssembly.Instance = function (module, imports) {
  const modules = Object.entries(imports).map(([from, all]) => {
    const named = Object.entries(all).map(([name, imported]) => [name, counted(name.replace(/_[0-9a-f]{16}$/, ""), imported)]);
    return [from, Object.fromEntries(named)];
  });
  return new Instance(module, Object.fromEntries(modules));
};
