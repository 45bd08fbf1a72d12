// A peer: the endpoint `is-authenticated`, for requests without an Authorization header.
import { begin, json } from "./request.js";

export default {
  fetch(request) {
    const call = begin(request);
    return json(call, JSON.stringify({ authenticated: call.authorization !== null }));
  },
};
