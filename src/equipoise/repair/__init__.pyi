from .audit_model import audit as audit
