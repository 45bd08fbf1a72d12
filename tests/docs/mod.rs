//! Documents that say what is so: the OpenAPI document, the API reference, links, dependencies.

mod citations;
mod dependencies;
mod documents;
mod openapi;
mod properties;
mod site;
