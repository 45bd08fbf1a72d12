// The service's Worker, observed: how often its wasm calls JavaScript, and what it asks D1. `GET /observed` gives both, as of the
// requests since the last one. The Worker itself is `service.mjs`, beside its wasm.
import { calls } from "./count.mjs";
import service from "./service.mjs";

export * from "./service.mjs";

let statements = [];

/** D1, which notes each statement with its parameters. */
const observed = (database) => ({
  prepare: (text) => ({
    bind: (...parameters) => {
      statements.push({ text, parameters });
      return database.prepare(text).bind(...parameters);
    },
  }),
  batch: (all) => database.batch(all),
});

export default {
  ...service,
  async fetch(request, env, context) {
    if (new URL(request.url).pathname === "/observed") {
      const told = { calls: { ...calls }, statements };
      for (const name of Object.keys(calls)) delete calls[name];
      statements = [];
      return Response.json(told);
    }
    return service.fetch(request, { ...env, DB: observed(env.DB) }, context);
  },
};
