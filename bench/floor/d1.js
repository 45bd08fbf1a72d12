// The floor: what a Worker costs whose only work is one call to D1.
export default {
  async fetch(request, env) {
    return Response.json(await env.DB.prepare("SELECT 1 AS one").first());
  },
};
