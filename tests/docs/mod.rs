//! Checks of the documents: the OpenAPI document, the API reference, links, citations, dependencies,
//! vars.

mod citations;
mod dependencies;
mod documents;
mod examples;
mod openapi;
mod pipelines;
mod properties;
mod site;
mod vars;
