from tests.support.service_models import models_read_once

__all__ = ["models_read_once"]
