// A peer: a Worker that only makes one D1 call. Its cost is a lower bound for requests that need
// D1.
export default {
  async fetch(request, env) {
    return Response.json(await env.DB.prepare("SELECT 1 AS one").first());
  },
};
