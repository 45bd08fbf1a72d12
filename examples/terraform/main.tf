# Not run by our tests: they only check that its brackets and texts are closed.
#
# Restarts an app once for each release. Terraform reads a data source at every plan, so the request is sent
# at every plan as well. The Idempotency-Key is the same for one release: within 24 hours the service answers with
# the first command again, and runs nothing. A later plan of the same release runs the command again.
terraform {
  required_version = ">= 1.5"
  required_providers {
    http = {
      source  = "hashicorp/http"
      version = "~> 3.4"
    }
  }
}

variable "farhand_url" {
  type        = string
  description = "The address of the workspace, such as https://acme.eu1.example.com"
}

variable "farhand_token" {
  type        = string
  sensitive   = true
  description = "The key of an API token that may run this command only"
}

variable "release" {
  type = string
}

data "http" "restart" {
  url    = "${var.farhand_url}/api/events/commands/"
  method = "POST"

  request_headers = {
    Authorization   = "token=\"${var.farhand_token}\""
    Content-Type    = "application/json"
    Prefer          = "wait=60"
    Idempotency-Key = "restart-${var.release}"
  }
  request_body = jsonencode({
    server   = "web-1"
    argv     = ["systemctl", "restart", "app"]
    username = "root"
  })
  request_timeout_ms = 90000

  lifecycle {
    postcondition {
      condition     = self.status_code == 201 && try(jsondecode(self.response_body).success, false) == true
      error_message = "The restart failed: ${self.response_body}"
    }
  }
}

output "restart" {
  value = jsondecode(data.http.restart.response_body).status.message
}
