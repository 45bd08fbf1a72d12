// The service's Worker with an observer, which counts its calls from wasm into JavaScript and
// records its D1 statements. `GET /observed` returns both since the previous `GET /observed`. The
// Worker itself is `service.mjs` in the same folder.
import { calls } from "./count.mjs";
import service from "./service.mjs";

export * from "./service.mjs";

let statements = [];

/** Wraps a D1 database to record each statement with its parameters. */
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
      const observations = { calls: { ...calls }, statements };
      for (const name of Object.keys(calls)) delete calls[name];
      statements = [];
      return Response.json(observations);
    }
    return service.fetch(request, { ...env, DB: observed(env.DB) }, context);
  },
};
