"""The OpenShell Driver: SandboxDriver and CredentialGatewayDriver over one OpenShell gateway, and the Backend they share."""
