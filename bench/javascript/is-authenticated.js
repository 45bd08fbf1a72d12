// The peer of `is-authenticated` without a header.
import { begin, json } from "./request.js";

export default {
  fetch(request) {
    const call = begin(request);
    return json(call, JSON.stringify({ authenticated: call.authorization !== null }));
  },
};
