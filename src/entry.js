// The entry point of the Worker. scripts/build.mjs bundles it with the module that wasm-bindgen
// writes, and appends an export for each class of Durable Objects in wrangler.toml.
//
// A panic leaves the memory of WebAssembly in an unknown state. Then the next call starts
// WebAssembly again, and objects are constructed again. This part, except for the handlers, is from
// worker-build 0.8.7 (https://github.com/cloudflare/workers-rs, Apache-2.0). worker-build exports a
// class, which creates an object and three proxies for each request. The handlers need none.
import * as wasm from "./index.js";

Error.stackTraceLimit = 100;
const state = wasm.__worker_init_state();

function restartAfterPanic() {
  if (!state.criticalError) return;
  console.log(JSON.stringify({ event: "restarted" }));
  wasm.__wbg_reset_state();
  state.criticalError = false;
  state.instanceId++;
}

function noticePanic(error) {
  if (!(error instanceof WebAssembly.RuntimeError)) return;
  console.error("Critical", error);
  state.criticalError = true;
}

addEventListener("error", (event) => noticePanic(event.error));

const handler = (original) => async (event, env, ctx) => {
  restartAfterPanic();
  try {
    return await original.call({ env, ctx }, event, env, ctx);
  } catch (error) {
    noticePanic(error);
    throw error;
  }
};

export default { fetch: handler(wasm.fetch), scheduled: handler(wasm.scheduled) };

const forwarded = {
  set: (target, property, value, receiver) => Reflect.set(target.instance, property, value, receiver),
  has: (target, property) => Reflect.has(target.instance, property),
  deleteProperty: (target, property) => Reflect.deleteProperty(target.instance, property),
  apply: (target, self, args) => Reflect.apply(target.instance, self, args),
  construct: (target, args, newTarget) => Reflect.construct(target.instance, args, newTarget),
  getPrototypeOf: (target) => Reflect.getPrototypeOf(target.instance),
  setPrototypeOf: (target, prototype) => Reflect.setPrototypeOf(target.instance, prototype),
  isExtensible: (target) => Reflect.isExtensible(target.instance),
  preventExtensions: (target) => Reflect.preventExtensions(target.instance),
  getOwnPropertyDescriptor: (target, property) => Reflect.getOwnPropertyDescriptor(target.instance, property),
  defineProperty: (target, property, descriptor) => Reflect.defineProperty(target.instance, property, descriptor),
  ownKeys: (target) => Reflect.ownKeys(target.instance),
};

const callOfMethod = {
  apply(method, self, args) {
    restartAfterPanic();
    try {
      return method.apply(self, args);
    } catch (error) {
      noticePanic(error);
      throw error;
    }
  },
};

const callOfAsyncMethod = {
  async apply(method, self, args) {
    restartAfterPanic();
    try {
      return await method.apply(self, args);
    } catch (error) {
      noticePanic(error);
      throw error;
    }
  },
};

/** Returns a class whose objects are constructed again after a panic. */
const restartable = (original) =>
  new Proxy(original, {
    construct(ctor, args, newTarget) {
      try {
        restartAfterPanic();
        const create = () => Reflect.construct(ctor, args, newTarget);
        const target = { instance: create(), instanceId: state.instanceId };
        return new Proxy(target, {
          ...forwarded,
          get(target, property, receiver) {
            if (target.instanceId !== state.instanceId) {
              target.instance = create();
              target.instanceId = state.instanceId;
            }
            const value = Reflect.get(target.instance, property, receiver);
            if (typeof value !== "function") return value;
            return new Proxy(value, value.constructor === Function ? callOfMethod : callOfAsyncMethod);
          },
        });
      } catch (error) {
        state.criticalError = true;
        throw error;
      }
    },
  });
