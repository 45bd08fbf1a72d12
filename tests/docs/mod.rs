//! Checks of the documents: the OpenAPI document, links, citations, dependencies.

mod citations;
mod dependencies;
mod documents;
mod examples;
mod openapi;
mod properties;
