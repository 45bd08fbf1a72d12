// The floor: the cost of a Worker that only makes one D1 call.
export default {
  async fetch(request, env) {
    return Response.json(await env.DB.prepare("SELECT 1 AS one").first());
  },
};
