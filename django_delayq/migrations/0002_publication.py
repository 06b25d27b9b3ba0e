from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ("delayq", "0001_initial"),
    ]

    operations = [
        migrations.AddField(model_name="job", name="ending", field=models.CharField(max_length=10, null=True)),
        migrations.AddField(model_name="job", name="merged_into", field=models.UUIDField(null=True)),
        migrations.AddField(model_name="job", name="delay_ms", field=models.BigIntegerField(null=True)),
        migrations.AddField(model_name="checkpoint", name="servers", field=models.TextField(null=True)),
    ]
