// A peer: the bare pbkdf2 crate in workerd. Computes one password hash per request.
import module from "./derive.wasm";

const { derive } = new WebAssembly.Instance(module).exports;

export default {
  fetch(request) {
    const rounds = Number(new URL(request.url).searchParams.get("rounds") ?? 1);
    return Response.json(derive(rounds));
  },
};
